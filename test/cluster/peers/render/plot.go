package render

import (
	"fmt"
	"image/color"
	"math"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"

	"sluice/test/cluster/peers/figures"
)

// picture is one of the drawings.
type picture struct {
	Name, Title string

	unit   string
	scale  float64 // of the figures to the unit
	bars   bool    // otherwise lines over the number of Services
	linear bool    // otherwise the figures are on a logarithmic axis
	metric figures.Metric
	floor  func(f *figures.Floor) float64 // nil: none
	limit  string                         // what the floor is called
}

// pictures are all of them.
var pictures = []picture{
	{
		Name: "change", Title: "Endpoint change to traffic, idle, p50", unit: "seconds", scale: 1,
		metric: figures.ChangeLatency(0), floor: func(f *figures.Floor) float64 { return f.Change(0).Value }, limit: "floor",
	},
	{
		Name: "change-busy", Title: "Endpoint change to traffic, 50 other changes per second, p50", unit: "seconds", scale: 1,
		metric: figures.ChangeLatency(50), floor: func(f *figures.Floor) float64 { return f.Change(50).Value }, limit: "floor",
	},
	{
		Name: "coldstart", Title: "Cold start until every Service answers", unit: "seconds", scale: 1, bars: true,
		metric: figures.ColdStartTime,
	},
	{
		Name: "cpu", Title: "CPU per update, 50 other changes per second", unit: "milliseconds", scale: 1000, bars: true,
		metric: figures.ChangeCPU(50),
	},
	{
		Name: "memory", Title: "Peak resident memory", unit: "MiB", scale: 1.0 / (1 << 20), bars: true, linear: true,
		metric: figures.PeakMemory,
	},
	{
		Name: "connections", Title: "New TCP connections per second through a ClusterIP",
		unit: "connections per second", scale: 1, linear: true,
		metric: figures.Connections, floor: func(f *figures.Floor) float64 { return f.TCP.PerSecond }, limit: "directly, without rules",
	},
}

// The size of a picture, and the part of it that is left for bars.
const width, height, inner = 8 * vg.Inch, 5 * vg.Inch, 7.2 * vg.Inch

// draw writes all pictures as SVG and PNG.
func draw(r *figures.Report, stem string) error {
	for _, x := range pictures {
		p := x.empty(x.Title)
		if !x.linear {
			p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		}
		p.Add(plotter.NewGrid())
		add := x.addLines
		if x.bars {
			add = x.addBars
		}
		some, err := add(p, r)
		if err != nil {
			return fmt.Errorf("draw %s: %w", x.Name, err)
		}
		if !some { // a logarithmic axis cannot be drawn of nothing
			p = x.empty(x.Title + ": not measured")
			p.HideAxes()
		}
		for _, format := range []string{"svg", "png"} {
			if err := p.Save(width, height, stem+"-"+x.Name+"."+format); err != nil {
				return fmt.Errorf("draw %s: %w", x.Name, err)
			}
		}
	}
	return nil
}

// empty is a picture with nothing in it yet.
func (x picture) empty(title string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.Y.Label.Text = title, x.unit
	p.Title.Padding = vg.Points(8)
	p.Legend.Top, p.Legend.Left = true, true
	p.BackgroundColor = color.White
	for _, t := range []*text.Style{
		&p.Title.TextStyle, &p.Legend.TextStyle,
		&p.X.Label.TextStyle, &p.X.Tick.Label, &p.Y.Label.TextStyle, &p.Y.Tick.Label,
	} {
		t.Font.Variant = "Sans"
	}
	return p
}

// frame sets the ends of the vertical axis, with room for the legend.
func (x picture) frame(p *plot.Plot, low, high float64) {
	p.Y.Min, p.Y.Max = low, high*30
	if x.linear {
		p.Y.Min, p.Y.Max = 0, high*1.4
	}
}

// addLines puts a line for each peer into a plot, and one for the floor. It
// reports whether there are any figures.
func (x picture) addLines(p *plot.Plot, r *figures.Report) (bool, error) {
	var ticks plot.ConstantTicks
	for _, s := range r.Sizes() {
		ticks = append(ticks, plot.Tick{Value: float64(s.Services), Label: strconv.Itoa(s.Services)})
	}
	p.X.Label.Text, p.X.Scale, p.X.Tick.Marker = "Services", plot.LogScale{}, ticks
	some := false
	for i, peer := range r.Peers() {
		var points plotter.XYs
		for _, s := range r.Sizes() {
			if f := x.metric(r.Result(peer, s)); f.Value > 0 {
				points = append(points, plotter.XY{X: float64(s.Services), Y: f.Value * x.scale})
			}
		}
		if err := line(p, peer, points, styleOf(peer, i)); err != nil {
			return false, err
		}
		some = some || len(points) > 0
	}
	if x.floor != nil && some {
		var points plotter.XYs
		for i := range r.Floors {
			if v := x.floor(&r.Floors[i]); v > 0 {
				points = append(points, plotter.XY{X: float64(r.Floors[i].Size.Services), Y: v})
			}
		}
		if err := line(p, x.limit, points, style{color: color.Gray{120}, dashes: dotted}); err != nil {
			return false, err
		}
	}
	p.X.Min, p.X.Max = p.X.Min*0.8, p.X.Max*1.25
	x.frame(p, p.Y.Min*0.5, p.Y.Max)
	return some, nil
}

// line adds one line with its points.
func line(p *plot.Plot, name string, points plotter.XYs, s style) error {
	if len(points) == 0 {
		return nil
	}
	l, dots, err := plotter.NewLinePoints(points)
	if err != nil {
		return err
	}
	l.Color, l.Width, l.Dashes = s.color, vg.Points(2), s.dashes
	dots.Color, dots.Shape, dots.Radius = s.color, vgdraw.CircleGlyph{}, vg.Points(3)
	p.Add(l, dots)
	p.Legend.Add(name, l, dots)
	return nil
}

// bar is one figure; a hollow one is a lower bound.
type bar struct {
	x, value float64
	color    color.Color
	hollow   bool
}

// addBars puts a group of bars for each size into a plot, and reports whether
// there are any.
func (x picture) addBars(p *plot.Plot, r *figures.Report) (bool, error) {
	const group = 0.85 // of the distance between two sizes
	var bars []bar
	var ticks plot.ConstantTicks
	low, high := math.Inf(1), 0.0
	peers := r.Peers()
	step := group / float64(max(1, len(peers)))
	named := map[string]bool{}
	for _, s := range r.Sizes() {
		from := len(bars)
		for i, peer := range peers {
			f := x.metric(r.Result(peer, s))
			if f.Value <= 0 {
				continue
			}
			b := bar{value: f.Value * x.scale, color: styleOf(peer, i).color, hollow: f.More}
			bars = append(bars, b)
			low, high = min(low, b.value), max(high, b.value)
			named[peer] = true
		}
		here := bars[from:]
		for i := range here {
			here[i].x = float64(len(ticks)) + (float64(i)-float64(len(here)-1)/2)*step
		}
		if len(here) > 0 {
			ticks = append(ticks, plot.Tick{Value: float64(len(ticks)), Label: s.String()})
		}
	}
	if len(bars) == 0 {
		return false, nil
	}
	for i, peer := range peers {
		if named[peer] {
			p.Legend.Add(peer, &plotter.BarChart{Color: styleOf(peer, i).color})
		}
	}
	bottom := 0.0
	if !x.linear { // such an axis has no zero
		bottom = math.Pow(10, math.Floor(math.Log10(low)))
	}
	left, right := -0.6, float64(len(ticks))-0.4
	if err := addBars(p, bars, bottom, inner*vg.Length(0.92*step/(right-left))); err != nil {
		return false, err
	}
	p.X.Label.Text, p.X.Tick.Marker, p.X.Min, p.X.Max = "Services x endpoints", ticks, left, right
	x.frame(p, bottom, high)
	return true, nil
}

// addBars draws bars from the bottom of the picture on, each with its figure.
func addBars(p *plot.Plot, bars []bar, bottom float64, wide vg.Length) error {
	var labels plotter.XYLabels
	for _, b := range bars {
		below := &plotter.BarChart{Values: plotter.Values{bottom}, XMin: b.x}
		chart, err := plotter.NewBarChart(plotter.Values{b.value - bottom}, wide)
		if err != nil {
			return err
		}
		chart.StackOn(below)
		chart.Color, chart.LineStyle = b.color, vgdraw.LineStyle{}
		// Two digits are enough above a bar.
		label := strconv.FormatFloat(b.value, 'g', 2, 64)
		if b.value >= 10 {
			label = strconv.FormatFloat(b.value, 'f', 0, 64)
		}
		if b.hollow {
			chart.Color, chart.LineStyle = color.Transparent, vgdraw.LineStyle{Color: b.color, Width: vg.Points(1.5), Dashes: dotted}
			label = ">" + label
		}
		p.Add(chart)
		labels.XYs = append(labels.XYs, plotter.XY{X: b.x, Y: b.value})
		labels.Labels = append(labels.Labels, label)
	}
	l, err := plotter.NewLabels(labels)
	if err != nil {
		return err
	}
	l.Offset.Y = vg.Points(2)
	for i := range l.TextStyle {
		l.TextStyle[i].Font.Variant, l.TextStyle[i].Font.Size = "Sans", vg.Points(7)
		l.TextStyle[i].XAlign = vgdraw.XCenter
	}
	p.Add(l)
	return nil
}

// style is how a peer is drawn everywhere.
type style struct {
	color  color.Color
	dashes []vg.Length
}

var dashed, dotted = []vg.Length{vg.Points(6), vg.Points(4)}, []vg.Length{vg.Points(2), vg.Points(3)}

// colors are those of the programs, for nftables and for other modes.
var colors = map[string][2]color.Color{
	"sluice":          {color.RGBA{0, 90, 180, 255}, color.RGBA{110, 170, 230, 255}},
	"kube-proxy-1.37": {color.RGBA{210, 80, 0, 255}, color.RGBA{245, 160, 95, 255}},
	"kube-proxy-1.36": {color.RGBA{110, 60, 130, 255}, color.RGBA{190, 150, 205, 255}},
}

// styleOf is the style of a peer: a colour for the program, darker and solid for
// nftables, lighter and dashed for other modes. Programs that are not known
// have greys.
func styleOf(peer string, i int) style {
	program, mode, _ := strings.Cut(peer, "/")
	pair, ok := colors[program]
	if !ok {
		grey := uint8(60 + 30*(i%5))
		pair = [2]color.Color{color.Gray{grey}, color.Gray{grey + 40}}
	}
	if mode == "nftables" {
		return style{color: pair[0]}
	}
	return style{color: pair[1], dashes: dashed}
}
