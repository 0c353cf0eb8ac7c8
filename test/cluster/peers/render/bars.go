package render

import (
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"

	"sluice/test/cluster/peers/figures"
)

// bar is one figure; a hollow one is a lower bound.
type bar struct {
	x, value float64
	color    color.Color
	hollow   bool
}

// bars draws bars from the bottom of the picture, which a logarithmic axis has
// no zero for.
type bars struct {
	all  []bar
	wide float64 // of the axis
}

// Plot draws them.
func (b bars) Plot(c vgdraw.Canvas, p *plot.Plot) {
	toX, toY := p.Transforms(&c)
	for _, one := range b.all {
		left, right := toX(one.x-b.wide/2), toX(one.x+b.wide/2)
		bottom, top := toY(p.Y.Min), toY(one.value)
		corners := []vg.Point{{X: left, Y: bottom}, {X: left, Y: top}, {X: right, Y: top}, {X: right, Y: bottom}}
		if one.hollow {
			s := vgdraw.LineStyle{Color: one.color, Width: vg.Points(1.5), Dashes: dotted()}
			c.StrokeLines(s, append(corners, corners[0]))
		} else {
			c.FillPolygon(one.color, corners)
		}
		label := p.X.Tick.Label
		label.XAlign, label.YAlign, label.Rotation = vgdraw.XCenter, vgdraw.YBottom, 0
		label.Font.Size = vg.Points(7)
		c.FillText(label, vg.Point{X: (left + right) / 2, Y: top + vg.Points(2)}, short(one))
	}
}

// short is a bar's figure with two digits.
func short(b bar) string {
	s := strconv.FormatFloat(b.value, 'g', 2, 64)
	if b.value >= 10 {
		s = strconv.FormatFloat(b.value, 'f', 0, 64)
	}
	if b.hollow {
		s = ">" + s
	}
	return s
}

// swatch is a bar in the legend.
type swatch struct{ color color.Color }

// Thumbnail draws it.
func (s swatch) Thumbnail(c *vgdraw.Canvas) {
	c.FillPolygon(s.color, []vg.Point{
		{X: c.Min.X, Y: c.Min.Y}, {X: c.Min.X, Y: c.Max.Y}, {X: c.Max.X, Y: c.Max.Y}, {X: c.Max.X, Y: c.Min.Y},
	})
}

// addBars puts a group of bars for each size into a plot.
func (x picture) addBars(p *plot.Plot, r *figures.Report) bool {
	const group = 0.85 // of the distance between two sizes
	var b bars
	var sizes []plot.Tick
	peers := r.Peers()
	low, high := math.Inf(1), 0.0
	seen := map[string]bool{}
	for _, s := range r.Sizes() {
		at := float64(len(sizes))
		var here []bar
		for i, peer := range peers {
			res := r.Result(peer, s)
			if res == nil {
				continue
			}
			v, ok := x.value(res)
			if !ok || v.Value <= 0 {
				continue
			}
			here = append(here, bar{value: float64(v.Value), color: look(peer, i).color, hollow: v.More})
			low, high = min(low, float64(v.Value)), max(high, float64(v.Value))
			seen[peer] = true
		}
		if len(here) == 0 {
			continue
		}
		b.wide = group / float64(len(peers))
		for i := range here {
			here[i].x = at + (float64(i)-float64(len(here)-1)/2)*b.wide
		}
		b.wide *= 0.92
		b.all = append(b.all, here...)
		sizes = append(sizes, plot.Tick{Value: at, Label: s.String()})
	}
	if len(b.all) == 0 {
		return false
	}
	for i, peer := range peers {
		if seen[peer] {
			p.Legend.Add(peer, swatch{look(peer, i).color})
		}
	}
	p.X.Label.Text, p.X.Tick.Marker = "Services x endpoints", plot.ConstantTicks(sizes)
	p.X.Min, p.X.Max = -0.6, float64(len(sizes))-0.4
	if x.linear {
		p.Y.Min, p.Y.Max = 0, high*1.4
	} else {
		const room = 30 // for the legend
		p.Y.Min, p.Y.Max = math.Pow(10, math.Floor(math.Log10(low))), high*room
	}
	p.Add(b)
	return true
}

// decades are the ticks of a logarithmic axis: one label for each power of ten,
// small ticks between.
type decades struct{}

// Ticks returns them.
func (decades) Ticks(low, high float64) []plot.Tick {
	var out []plot.Tick
	if low <= 0 {
		return out
	}
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		for m := 1.0; m < 10; m++ {
			v := m * math.Pow(10, e)
			if v < low || v > high {
				continue
			}
			t := plot.Tick{Value: v}
			if m == 1 {
				t.Label = strconv.FormatFloat(v, 'f', max(0, -int(e)), 64)
			}
			out = append(out, t)
		}
	}
	return out
}
