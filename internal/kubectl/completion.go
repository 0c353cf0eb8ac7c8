package kubectl

import (
	"strings"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/cli"
)

// complete adds shell completion of flag values, nodes and Services.
func (f *flags) complete(root *cobra.Command) {
	root.ValidArgsFunction = cobra.NoFileCompletions
	fixed := map[string]map[string][]string{ // by command and flag
		"status":  {"output": cli.StatusFormats, "sort-by": {"name", "used", "since", "state", "connections", "bytes"}},
		"explain": {"output": cli.ExplainFormats, "proto": {"tcp", "udp", "sctp"}},
		"top":     {"sort-by": cli.TopColumns},
	}
	register := func(cmd *cobra.Command, flag string, complete cobra.CompletionFunc) {
		if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
			panic(err) // The flag does not exist.
		}
	}
	for _, cmd := range root.Commands() {
		for flag, values := range fixed[cmd.Name()] {
			register(cmd, flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
		}
		cmd.ValidArgsFunction = cobra.NoFileCompletions
		if cmd.Name() == "status" || cmd.Name() == "explain" {
			cmd.ValidArgsFunction = f.completeServices
		}
	}
	register(root, "node", f.completeNodes)
}

// completeNodes completes nodes that have a daemon, or should have one.
func (f *flags) completeNodes(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	f.node = ""
	_, all, err := f.daemons(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, d := range all {
		if strings.HasPrefix(d.node, typed) {
			names = append(names, d.node)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeServices completes the first page of Services, of the namespace in typed or
// of all namespaces.
func (f *flags) completeServices(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	c, err := f.open()
	if err != nil || len(args) > 0 && cmd.Name() == "explain" {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	namespace, _, complete := strings.Cut(typed, "/")
	if !complete {
		namespace = ""
	}
	var list v1.ServiceList
	if err := c.list(cmd.Context(), "services", namespace, metav1.ListOptions{Limit: listPage}, &list); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for i := range list.Items {
		if name := list.Items[i].Namespace + "/" + list.Items[i].Name; strings.HasPrefix(name, typed) {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
