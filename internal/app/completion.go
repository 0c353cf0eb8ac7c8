package app

import (
	"context"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice/internal/dataplane"
	"sluice/internal/statusapi"
)

// completionTime is how long somebody waits who has pressed a key.
const completionTime = time.Second

// completeServices completes the name of a Service that the daemon at a socket
// knows. Where none answers nothing is completed.
func completeServices(socket *string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
		defer cancel()
		query := url.Values{}
		if namespace, name, ok := strings.Cut(word, "/"); ok {
			query.Set("namespace", namespace)
			query.Set("filter", name)
		} else if word != "" {
			query.Set("filter", word)
		}
		var page statusapi.ServiceList
		if err := statusapi.AtSocket(*socket).Get(ctx, statusapi.ServicesPath, query, &page); err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []cobra.Completion
		for _, s := range page.Items {
			if name := s.Namespace + "/" + s.Name; strings.HasPrefix(name, word) {
				names = append(names, cobra.CompletionWithDesc(name, s.Address))
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFlag completes the value of a flag that knows some words only.
func completeFlag(cmd *cobra.Command, flag string, words []string) {
	// It fails for a flag that is not there, which tests would see.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// completeMode completes the modes that there are.
func completeMode(cmd *cobra.Command) {
	completeFlag(cmd, "proxy-mode", strings.Split(dataplane.Names(" "), " "))
}
