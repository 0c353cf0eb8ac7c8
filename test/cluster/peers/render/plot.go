package render

import (
	"cmp"
	"fmt"
	"image/color"
	"maps"
	"math"
	"slices"
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
		p := x.plot(r)
		for _, format := range []string{"svg", "png"} {
			if err := p.Save(width, height, stem+"-"+x.Name+"."+format); err != nil {
				return fmt.Errorf("draw %s: %w", x.Name, err)
			}
		}
	}
	return nil
}

// point is one figure of a picture.
type point struct {
	size  figures.Size
	peer  string
	style style
	value float64
	more  bool // a lower bound
}

// points are those of a picture, by peer.
func (x picture) points(r *figures.Report) (out []point) {
	for _, peer := range r.Peers() {
		for _, s := range r.Sizes() {
			if f := x.metric(r.Result(peer, s)); f.Value > 0 {
				out = append(out, point{s, peer, styleOf(peer), f.Value * x.scale, f.More})
			}
		}
	}
	return out
}

// plot is the picture of a report.
func (x picture) plot(r *figures.Report) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.Y.Label.Text = x.Title, x.unit
	p.Title.Padding = vg.Points(8)
	p.Legend.Top, p.Legend.Left = true, true
	p.BackgroundColor = color.White
	for _, t := range []*text.Style{
		&p.Title.TextStyle, &p.Legend.TextStyle,
		&p.X.Label.TextStyle, &p.X.Tick.Label, &p.Y.Label.TextStyle, &p.Y.Tick.Label,
	} {
		t.Font.Variant = "Sans"
	}
	points := x.points(r)
	if len(points) == 0 { // a logarithmic axis cannot be drawn of nothing
		p.Title.Text += ": not measured"
		p.HideAxes()
		return p
	}
	p.Add(plotter.NewGrid())
	if !x.linear {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	if x.bars {
		x.addBars(p, points)
	} else {
		x.addLines(p, points, r)
	}
	room := 30.0 // for the legend
	if x.linear {
		p.Y.Min, room = 0, 1.4
	}
	p.Y.Max *= room
	return p
}

// addLines puts a line for each peer into a plot, and one for the floor.
func (x picture) addLines(p *plot.Plot, points []point, r *figures.Report) {
	for i := range r.Floors {
		f := &r.Floors[i]
		if x.floor != nil && x.floor(f) > 0 {
			points = append(points, point{f.Size, x.limit, style{color.Gray{120}, dotted}, x.floor(f), false})
		}
	}
	var ticks plot.ConstantTicks
	for _, s := range r.Sizes() {
		ticks = append(ticks, plot.Tick{Value: float64(s.Services), Label: strconv.Itoa(s.Services)})
	}
	for len(points) > 0 {
		first := points[0]
		var line plotter.XYs
		for len(points) > 0 && points[0].peer == first.peer {
			line = append(line, plotter.XY{X: float64(points[0].size.Services), Y: points[0].value})
			points = points[1:]
		}
		l := &plotter.Line{XYs: line, LineStyle: vgdraw.LineStyle{Color: first.style.color, Width: vg.Points(2), Dashes: first.style.dashes}}
		dots := &plotter.Scatter{XYs: line, GlyphStyle: vgdraw.GlyphStyle{Color: first.style.color, Shape: vgdraw.CircleGlyph{}, Radius: vg.Points(3)}}
		p.Add(l, dots)
		p.Legend.Add(first.peer, l, dots)
	}
	p.X.Label.Text, p.X.Scale, p.X.Tick.Marker = "Services", plot.LogScale{}, ticks
	p.X.Min, p.X.Max, p.Y.Min = p.X.Min*0.8, p.X.Max*1.25, p.Y.Min*0.5
}

// addBars puts a group of bars for each size into a plot, from the bottom on and
// each with its figure above.
func (x picture) addBars(p *plot.Plot, points []point) {
	bottom, named, groups := 0.0, map[string]bool{}, map[figures.Size][]point{}
	for _, b := range points {
		groups[b.size] = append(groups[b.size], b)
		if !named[b.peer] {
			p.Legend.Add(b.peer, &plotter.BarChart{Color: b.style.color})
		}
		named[b.peer] = true
	}
	if !x.linear { // such an axis has no zero
		least := slices.MinFunc(points, func(a, b point) int { return cmp.Compare(a.value, b.value) })
		bottom = math.Pow(10, math.Floor(math.Log10(least.value)))
	}
	left, right := -0.6, float64(len(groups))-0.4
	step := 0.85 / float64(len(named)) // a group takes most of the distance to the next
	label := p.X.Tick.Label
	label.XAlign, label.YAlign, label.Font.Size = vgdraw.XCenter, vgdraw.YBottom, vg.Points(7)
	var ticks plot.ConstantTicks
	for at, size := range slices.SortedFunc(maps.Keys(groups), figures.Size.Compare) {
		ticks = append(ticks, plot.Tick{Value: float64(at), Label: size.String()})
		for i, b := range groups[size] {
			middle := float64(at) + (float64(i)-float64(len(groups[size])-1)/2)*step
			chart := &plotter.BarChart{Values: plotter.Values{b.value - bottom}, Width: inner * vg.Length(0.92*step/(right-left)), Color: b.style.color}
			chart.StackOn(&plotter.BarChart{Values: plotter.Values{bottom}, XMin: middle})
			number := strconv.FormatFloat(b.value, 'g', 2, 64)
			if b.value >= 10 {
				number = strconv.FormatFloat(b.value, 'f', 0, 64)
			}
			if b.more { // hollow
				chart.Color, chart.LineStyle = color.Transparent, vgdraw.LineStyle{Color: b.style.color, Width: vg.Points(1.5), Dashes: dotted}
				number = ">" + number
			}
			p.Add(chart, &plotter.Labels{
				XYs: plotter.XYs{{X: middle, Y: b.value}}, Labels: []string{number},
				TextStyle: []text.Style{label}, Offset: vg.Point{Y: vg.Points(2)},
			})
		}
	}
	p.X.Label.Text, p.X.Tick.Marker, p.X.Min, p.X.Max = "Services x endpoints", ticks, left, right
	p.Y.Min = bottom
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

// styleOf is the style of a peer: a colour for the program, grey if it is not
// known, darker and solid for nftables, lighter and dashed for other modes.
func styleOf(peer string) style {
	program, mode, _ := strings.Cut(peer, "/")
	pair, ok := colors[program]
	if !ok {
		pair = [2]color.Color{color.Gray{90}, color.Gray{150}}
	}
	if mode == "nftables" {
		return style{color: pair[0]}
	}
	return style{color: pair[1], dashes: dashed}
}
