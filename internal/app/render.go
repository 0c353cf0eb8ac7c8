package app

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"sluice/internal/cli"
	"sluice/internal/dataplane"
	"sluice/internal/proxy"
)

// renderOptions are the flags of render that the daemon does not have.
type renderOptions struct {
	service string
	family  string
	diff    bool
}

func newRenderCommand() *cobra.Command {
	o, r := NewOptions(), renderOptions{}
	cmd := &cobra.Command{
		Use:   "render --manifests DIR --proxy-mode MODE",
		Short: "Print what a mode would write, or how the kernel differs from it",
		Long: `Print what a mode would write into the kernel for a folder of manifests, with the
daemon's flags. Nothing is written, and neither root nor a cluster is needed.

Commands of mode nftables can be read by nft -f, those of mode iptables by
iptables-restore --noflush and, with --family IPv6, ip6tables-restore --noflush.

With --diff this is compared with the kernel: lines with - are there and should
not be, lines with + are missing. Exit code 0: nothing differs; 1: something does;
2: the comparison was not possible.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.render(cmd.Context(), cmd.OutOrStdout(), r)
		},
	}
	cmd.Flags().StringVar(&r.service, "service", "", "print only what belongs to this Service, named `NAMESPACE/NAME`")
	cmd.Flags().StringVar(&r.family, "family", "", "print only what is for this `FAMILY`, IPv4 or IPv6")
	cmd.Flags().BoolVar(&r.diff, "diff", false, "print only what differs from the kernel's state")
	cmd.Flags().AddFlagSet(o.flagSubset(append(slices.Clone(offlineFlags), "bpf-root")...))
	completeMode(cmd)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return cli.Answering(cmd)
}

func (o *Options) render(ctx context.Context, out io.Writer, flags renderOptions) error {
	families, err := flags.families()
	if err != nil {
		return err
	}
	p, err := o.offlinePlan()
	if err != nil {
		return err
	}
	mode, err := dataplane.Rendered(p.config.Mode)
	if err != nil {
		return err
	}
	state, err := p.offline(ctx, families)
	if err != nil {
		return err
	}
	buffered := bufio.NewWriter(out)
	r := &dataplane.Rendering{Settings: o.settingsOf(p.config), Want: state.resolver.State(), Diff: flags.diff, Out: buffered}
	r.Families = families
	if r.Only, err = flags.only(r.Want); err != nil {
		return err
	}
	for _, problem := range state.files {
		r.Remark("%v", problem)
	}
	for _, problem := range state.problems {
		r.Remark("%v", problem)
	}
	if r.Only != nil {
		r.Remark("Only what Service %s needs: what all Services share is left out", flags.service)
	}
	// Messages that a mode logs when it writes would be wrong here.
	err = errors.Join(mode.Render(klog.NewContext(ctx, klog.Logger{}), r), buffered.Flush())
	if err == nil && flags.diff && r.Lines > 0 {
		return &cli.ExitError{Code: cli.ExitFinding}
	}
	return err
}

// families returns the families to render. A comparison with the kernel covers only
// those that are enabled on the host.
func (r renderOptions) families() ([]proxy.Family, error) {
	all := proxy.Families[:]
	if r.diff {
		all, _ = enabledFamilies()
	}
	if r.family == "" {
		return all, nil
	}
	for _, f := range all {
		if strings.EqualFold(f.String(), r.family) {
			return []proxy.Family{f}, nil
		}
	}
	return nil, fmt.Errorf("--family %q: not one of %v", r.family, all)
}

// only returns a function that selects the rows of the Service given by --service,
// nil without that flag. It is an error if there is no such row.
func (r renderOptions) only(s *proxy.State) (func(proxy.PortKey) bool, error) {
	if r.service == "" {
		return nil, nil
	}
	of := func(k proxy.PortKey) bool { return k.Namespace+"/"+k.Name == r.service }
	for k := range s.Rows {
		if of(k) {
			return of, nil
		}
	}
	return nil, fmt.Errorf("--service %q: the folder has no such Service with an address that this proxy serves; give NAMESPACE/NAME", r.service)
}
