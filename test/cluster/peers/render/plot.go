package render

import (
	"fmt"
	"image/color"
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
	name, title, unit string
	bars              bool // otherwise lines over the number of Services
	linear            bool // otherwise the figures are on a logarithmic axis
	value             func(x *figures.Result) (figures.Bound, bool)
	floor             func(f *figures.Floor) (figures.Seconds, bool) // nil: none
	limit             string                                         // what the floor is called
}

// pictures are all of them.
func pictures() []picture {
	return []picture{
		{
			name: "change", title: "Endpoint change to traffic, idle, p50", unit: "seconds",
			value: change(0), floor: func(f *figures.Floor) (figures.Seconds, bool) { return f.Change(0) }, limit: "floor",
		},
		{
			name: "change-busy", title: "Endpoint change to traffic, 50 other changes per second, p50", unit: "seconds",
			value: change(50), floor: func(f *figures.Floor) (figures.Seconds, bool) { return f.Change(50) }, limit: "floor",
		},
		{
			name: "coldstart", title: "Cold start until every Service answers", unit: "seconds", bars: true,
			value: func(x *figures.Result) (figures.Bound, bool) {
				if x.ColdStart == nil {
					return figures.Bound{}, false
				}
				return x.ColdStart.Done(), true
			},
		},
		{
			name: "cpu", title: "CPU per update, 50 other changes per second", unit: "milliseconds", bars: true,
			value: func(x *figures.Result) (figures.Bound, bool) {
				c := x.Change(50)
				if c == nil {
					return figures.Bound{}, false
				}
				return figures.Bound{Value: c.PerUpdate() * 1000}, c.CPU > 0
			},
		},
		{
			name: "memory", title: "Peak resident memory", unit: "MiB", bars: true, linear: true,
			value: func(x *figures.Result) (figures.Bound, bool) {
				if x.Memory == nil {
					return figures.Bound{}, false
				}
				return figures.Bound{Value: figures.Seconds(float64(x.Memory.Peak) / (1 << 20))}, true
			},
		},
		{
			name: "connections", title: "New TCP connections per second through a ClusterIP",
			unit: "connections per second", linear: true,
			value: func(x *figures.Result) (figures.Bound, bool) {
				if x.DataPath == nil {
					return figures.Bound{}, false
				}
				return figures.Bound{Value: figures.Seconds(x.DataPath.TCP.PerSecond.Service)}, true
			},
			floor: func(f *figures.Floor) (figures.Seconds, bool) { return figures.Seconds(f.TCP.PerSecond), true },
			limit: "directly, without rules",
		},
	}
}

func change(rate int) func(x *figures.Result) (figures.Bound, bool) {
	return func(x *figures.Result) (figures.Bound, bool) {
		c := x.Change(rate)
		if c == nil {
			return figures.Bound{}, false
		}
		b := c.Percentile(50)
		return b, !b.None && b.Value > 0
	}
}

// The size of a picture.
const width, height = 8 * vg.Inch, 5 * vg.Inch

// draw writes all pictures as SVG and PNG.
func draw(r *figures.Report, stem string) error {
	for _, x := range pictures() {
		p := x.empty(x.title)
		if !x.linear {
			p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, decades{}
		}
		p.Add(plotter.NewGrid())
		some, err := x.add(p, r)
		if err != nil {
			return fmt.Errorf("draw %s: %w", x.name, err)
		}
		if !some { // a logarithmic axis cannot be drawn of nothing
			p = x.empty(x.title + ": not measured")
			p.HideAxes()
		}
		for _, format := range []string{"svg", "png"} {
			if err := p.Save(width, height, stem+"-"+x.name+"."+format); err != nil {
				return fmt.Errorf("draw %s: %w", x.name, err)
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

// add puts the figures into a plot and reports whether there are any.
func (x picture) add(p *plot.Plot, r *figures.Report) (bool, error) {
	if x.bars {
		return x.addBars(p, r), nil
	}
	p.X.Label.Text = "Services"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, ticks(r)
	some := false
	for i, peer := range r.Peers() {
		var points plotter.XYs
		for _, s := range r.Sizes() {
			if res := r.Result(peer, s); res != nil {
				if b, ok := x.value(res); ok {
					points = append(points, plotter.XY{X: float64(s.Services), Y: float64(b.Value)})
				}
			}
		}
		if err := line(p, peer, points, look(peer, i)); err != nil {
			return false, err
		}
		some = some || len(points) > 0
	}
	if x.floor != nil && some {
		var points plotter.XYs
		for i := range r.Floors {
			if v, ok := x.floor(&r.Floors[i]); ok && v > 0 {
				points = append(points, plotter.XY{X: float64(r.Floors[i].Size.Services), Y: float64(v)})
			}
		}
		if err := line(p, x.limit, points, style{color: color.Gray{120}, dashes: dotted()}); err != nil {
			return false, err
		}
	}
	x.frame(p)
	return some, nil
}

// ticks are the numbers of Services that there are figures of.
func ticks(r *figures.Report) plot.ConstantTicks {
	var out plot.ConstantTicks
	for _, s := range r.Sizes() {
		out = append(out, plot.Tick{Value: float64(s.Services), Label: strconv.Itoa(s.Services)})
	}
	return out
}

// frame leaves room around the lines.
func (x picture) frame(p *plot.Plot) {
	p.X.Min, p.X.Max = p.X.Min*0.8, p.X.Max*1.25
	if x.linear {
		p.Y.Min, p.Y.Max = 0, p.Y.Max*1.4
		return
	}
	const room = 30 // for the legend
	p.Y.Min, p.Y.Max = p.Y.Min*0.5, p.Y.Max*room
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

// style is how a peer is drawn everywhere.
type style struct {
	color  color.Color
	dashes []vg.Length
}

func dashed() []vg.Length { return []vg.Length{vg.Points(6), vg.Points(4)} }
func dotted() []vg.Length { return []vg.Length{vg.Points(2), vg.Points(3)} }

// look is the style of a peer: a colour for the program, darker and solid for
// nftables, lighter and dashed for other modes. Programs that are not known
// have greys.
func look(peer string, i int) style {
	program, mode, _ := strings.Cut(peer, "/")
	known := map[string][2]color.Color{
		"sluice":          {color.RGBA{0, 90, 180, 255}, color.RGBA{110, 170, 230, 255}},
		"kube-proxy-1.37": {color.RGBA{210, 80, 0, 255}, color.RGBA{245, 160, 95, 255}},
		"kube-proxy-1.36": {color.RGBA{110, 60, 130, 255}, color.RGBA{190, 150, 205, 255}},
	}
	pair, ok := known[program]
	if !ok {
		grey := uint8(60 + 30*(i%5))
		pair = [2]color.Color{color.Gray{grey}, color.Gray{grey + 40}}
	}
	if mode == "nftables" {
		return style{color: pair[0]}
	}
	return style{color: pair[1], dashes: dashed()}
}
