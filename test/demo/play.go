//go:build linux

package main

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// startup is how long the daemon may take until it forwards.
	startup = 15 * time.Second
	// settling is how long a change may take; the bound for each request is
	// shorter, this one also covers a machine that sends only few.
	settling = 10 * time.Second
)

// pace is how fast the play goes.
type pace struct {
	frame   time.Duration // between pictures
	act     time.Duration // how long an act lasts at least
	forever bool
}

// act is one scene: what the manifests say during it.
type act struct {
	title   string
	edition edition
}

// play is one run of the demo.
type play struct {
	folder  *folder
	stage   *stage
	catalog catalog
	show    display
	pace    pace
	mode    string

	daemon  *daemon
	tally   *tally
	broken  chan error // a client could not send
	summary []string
}

// script returns the acts of a round, which ends as it began.
func script(c catalog) ([]act, error) {
	pods := c.localPods()
	if len(pods) < 2 {
		return nil, fmt.Errorf("%d pods on the node %s, the demo needs two to take one away", len(pods), c.node)
	}
	leaves := []netip.Addr{pods[1].addr} // the first one is a client too
	comes := []newcomer{{netip.MustParseAddr(arrivalAddr), arrivalNode}}
	return []act{
		{fmt.Sprintf("%d pods serve all Services", len(c.pods)), edition{}},
		{fmt.Sprintf("taking away %v", leaves[0]), edition{without: leaves}},
		{fmt.Sprintf("adding %v, on another node", comes[0].addr), edition{without: leaves, with: comes}},
		{"putting everything back", edition{}},
	}, nil
}

// run starts the daemon, plays and stops it.
func (p *play) run(ctx context.Context, program string) error {
	acts, err := script(p.catalog)
	if err != nil {
		return err
	}
	began := time.Now()
	cmd := exec.Command(program, "--manifests", p.folder.live(), "--hostname-override", p.catalog.node,
		"--proxy-mode", p.mode, "--cluster-cidr", clusterCIDR, "--v", "2")
	if p.daemon, err = startDaemon(p.stage.lab.Node(), cmd, p.folder.log()); err != nil {
		return err
	}
	err = p.await(ctx, began)
	if err == nil {
		err = p.perform(ctx, acts)
	}
	err = failure(err, p.daemon.stop())
	if err != nil && err != errInterrupted {
		fmt.Fprintln(os.Stderr, p.daemon.tail())
	}
	return err
}

// await waits until the daemon forwards everything as it should.
func (p *play) await(ctx context.Context, began time.Time) error {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		wrong := p.rehearse(ctx)
		took := time.Since(began)
		if wrong == nil {
			p.show.say("the daemon forwards, %s after its start", brief(took))
			return nil
		}
		if took > startup {
			return fmt.Errorf("the daemon does not forward %s after its start: %w", brief(took), wrong)
		}
		p.show.wait("waiting for the daemon to forward ... " + brief(took))
		select {
		case <-ctx.Done():
			return errInterrupted
		case <-p.daemon.done:
			return p.daemon.ended()
		case <-tick.C:
		}
	}
}

// rehearse sends every request once and returns what went wrong.
func (p *play) rehearse(ctx context.Context) error {
	t := newTally(p.catalog)
	for _, r := range p.stage.rounds(p.catalog, impatience) {
		hits, err := r.send(ctx)
		if err != nil {
			return err
		}
		t.take(hits)
	}
	return t.verdict()
}

// perform sends requests all the time and plays the acts meanwhile.
func (p *play) perform(ctx context.Context, acts []act) error {
	p.tally = newTally(p.catalog)
	rounds := p.stage.rounds(p.catalog, patience)
	p.broken = make(chan error, len(rounds))
	sending, stop := context.WithCancel(ctx)
	var clients sync.WaitGroup
	for _, r := range rounds {
		clients.Go(func() {
			if err := r.run(sending, p.tally.take); err != nil {
				p.broken <- err
			}
		})
	}
	err := p.rounds(ctx, acts)
	stop()
	clients.Wait()
	p.report()
	if err = failure(err, p.tally.verdict()); err == nil {
		p.show.say("Every request went where it should.")
	}
	return err
}

// report shows the last picture and the figures.
func (p *play) report() {
	v := p.view("The last moments")
	v.delays, v.hint = "", ""
	p.show.close(v)
	for _, s := range p.summary {
		p.show.say("%s", s)
	}
	p.show.say("%s requests, %s of them refused as they should be, %s wrong",
		thousands(v.requests), thousands(v.refused), thousands(v.failed))
}

// rounds plays all acts once, or again and again.
func (p *play) rounds(ctx context.Context, acts []act) error {
	for {
		p.summary = nil
		for i, a := range acts {
			headline := fmt.Sprintf("%d/%d  %s", i+1, len(acts), a.title)
			if err := p.act(ctx, headline, a.edition); err != nil {
				return err
			}
			if p.tally.faulty() {
				return nil
			}
		}
		if !p.pace.forever {
			return nil
		}
	}
}

// act changes the manifests, waits until requests follow, and looks where a
// good number of them goes from then on.
func (p *play) act(ctx context.Context, headline string, e edition) error {
	if err := p.folder.prepare(e); err != nil {
		return err
	}
	c, err := readCatalog(p.folder.next())
	if err != nil {
		return err
	}
	// What is new is right from a moment just before the change on.
	began := p.tally.change(c)
	if err := p.folder.publish(); err != nil {
		return err
	}
	late := began.Add(settling)
	settled := func() bool { return p.tally.settled() || p.tally.faulty() || time.Now().After(late) }
	if err := p.hold(ctx, headline+" ...", settled); err != nil {
		return err
	}
	if p.tally.faulty() {
		return nil // it is told at the end
	}
	if !p.tally.settled() {
		return fmt.Errorf("%s: requests did not follow within %v", headline, settling)
	}
	p.tally.restart()
	for _, w := range p.tally.delays().words() {
		p.summary = append(p.summary, fmt.Sprintf("%s: %s", headline, w))
	}
	end := began.Add(p.pace.act)
	if err := p.hold(ctx, headline, func() bool { return p.tally.sampled() && time.Now().After(end) }); err != nil {
		return err
	}
	p.tally.inspect()
	p.show.act(headline, p.tally.samples())
	return nil
}

// hold goes on showing the picture until the time has come.
func (p *play) hold(ctx context.Context, headline string, over func() bool) error {
	tick := time.NewTicker(p.pace.frame)
	defer tick.Stop()
	for !over() {
		p.show.frame(p.view(headline))
		select {
		case <-ctx.Done():
			return errInterrupted
		case err := <-p.broken:
			return err
		case <-p.daemon.done:
			return p.daemon.ended()
		case <-tick.C:
		}
	}
	return nil
}

// view returns the picture of the moment under a headline.
func (p *play) view(headline string) view {
	v := p.tally.view()
	v.title = fmt.Sprintf("Sluice, mode %s: real requests to the Services of the manifests", p.mode)
	v.headline, v.delays, v.hint = headline, strings.Join(p.tally.delays().words(), ", "), "Ctrl-C ends"
	return v
}

// sortedAddrs returns the addresses of a map in order.
func sortedAddrs[V any](m map[netip.Addr]V) []netip.Addr {
	return slices.SortedFunc(maps.Keys(m), netip.Addr.Compare)
}
