package app

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

const (
	description = `Sluice makes this node's kernel forward every Kubernetes Service to a right
endpoint. It reads Services and EndpointSlices from the API server or from a
folder, and follows every change. Stopping it leaves the rules in force.
`
	examples = `Examples:
  Serve the manifests of a folder, without any cluster:
    %[1]s --manifests ./examples --cluster-cidr 10.244.0.0/16

  Serve a cluster:
    %[1]s --kubeconfig /etc/sluice/kubeconfig --hostname-override node-1 \
      --cluster-cidr 10.244.0.0/16,fd00:10:244::/56

  Serve a cluster that kubeadm has set up, by its ConfigMap:
    %[1]s --config /var/lib/kube-proxy/config.conf
`
	defaultColumns = 80  // when it is not a terminal that reads
	maxColumns     = 110 // longer lines are hard to read
)

// setHelp prints the flags in their groups, as wide as the terminal.
func setHelp(cmd *cobra.Command, groups []flagGroup) {
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		out := cmd.OutOrStdout()
		fmt.Fprintf(out, "%s\nUsage:\n  %s [flags]\n\n", description, cmd.Name())
		fmt.Fprintf(out, examples, cmd.Name())
		for _, g := range groups {
			fmt.Fprintf(out, "\n%s:\n%s", g.title, g.FlagUsagesWrapped(columns(out)))
		}
	})
}

// columns returns how wide to print.
func columns(out io.Writer) int {
	f, ok := out.(*os.File)
	if !ok {
		return defaultColumns
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 {
		return defaultColumns
	}
	return min(width, maxColumns)
}
