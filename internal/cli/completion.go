package cli

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/inspect"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/status"
)

// addCompletions adds completions of arguments and flags. It reports no failure to ask the workers: a shell would offer the message.
func addCompletions(root *cobra.Command) {
	for line, words := range map[string]func(deployment) []string{
		"publish":      deployment.categories,
		"why":          deployment.categories,
		"limits":       deployment.categories,
		"limits set":   deployment.rules,
		"limits unset": deployment.live,
		"mute":         deployment.categories,
		"unmute":       deployment.muted,

		"delayed list": deployment.categories, "delayed release": deployment.categories, "delayed drop": deployment.categories,
	} {
		below(root, line).ValidArgsFunction = onlyFirst(words)
	}
	flag(root, "publish", "severity", values(event.SeverityInfo, event.SeverityWarning, event.SeverityError, event.SeverityCritical))
	flag(root, "publish", "status", values(event.StatusFiring, event.StatusResolved))
	flag(root, "mute", "except", values(event.SeverityCritical))
	flag(root, "why", "category", anywhere(deployment.categories))
	for _, line := range []string{"dlq list", "dlq replay", "dlq drop"} {
		flag(root, line, "reason", values(event.Reasons()...))
		flag(root, line, "category", anywhere(deployment.categories))
	}
}

func below(root *cobra.Command, line string) *cobra.Command {
	command, rest, err := root.Find(strings.Fields(line))
	if err != nil || len(rest) > 0 {
		panic("no command " + line)
	}
	return command
}

func flag(root *cobra.Command, line, name string, words cobra.CompletionFunc) {
	if err := below(root, line).RegisterFlagCompletionFunc(name, words); err != nil {
		panic(err)
	}
}

func values[T ~string](all ...T) cobra.CompletionFunc {
	return cobra.FixedCompletions(texts(all), cobra.ShellCompDirectiveNoFileComp)
}

func texts[T ~string](all []T) []string {
	texts := make([]string, len(all))
	for i, value := range all {
		texts[i] = string(value)
	}
	return texts
}

func anywhere(words func(deployment) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		found := slices.DeleteFunc(words(askDeployment(cmd.Context())), func(word string) bool { return !strings.HasPrefix(word, typed) })
		slices.Sort(found)
		return slices.Compact(found), cobra.ShellCompDirectiveNoFileComp
	}
}

// onlyFirst offers words for the first argument alone.
func onlyFirst(words func(deployment) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, arguments []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(arguments) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return anywhere(words)(cmd, arguments, typed)
	}
}

// deployment has the words that a deployment uses. If no worker answers, it has the limits of the settings here.
type deployment struct{ inspect.WorkersLimits }

// askDeployment asks the workers. With invalid settings the result is empty.
func askDeployment(ctx context.Context) (d deployment) {
	settings, err := commandSettings()
	if err != nil {
		return d
	}
	d.Settings = settings
	_ = withWorkers(ctx, settings, func(_ *stream.Connection, theirs inspect.WorkersLimits) error {
		d.WorkersLimits = theirs
		return nil
	})
	return d
}

// rules returns the rules and the categories that a limit can be set for.
func (d deployment) rules() []string {
	var words []string
	if tree, err := limits.NewTree(d.Settings.Limits.Plan()); err == nil {
		for _, level := range tree.AllLevels() {
			words = append(words, level.Level)
		}
		for _, guarantee := range tree.Guarantees() {
			words = append(words, guarantee.Path)
		}
	}
	for _, report := range d.Reports {
		for _, limit := range report.Limits {
			words = append(words, cmp.Or(limit.Path, limits.LevelGlobal))
		}
		for _, suppressed := range report.Suppressed {
			words = append(words, suppressed.Category)
		}
	}
	return append(words, d.live()...)
}

// categories returns the categories that have their own limit, used slots or suppressed events.
func (d deployment) categories() []string {
	return slices.DeleteFunc(d.rules(), func(word string) bool {
		return isLevel(word) || event.ValidatePath(word) != nil
	})
}

// reportUse reports whether the reports of the workers have the limits that are in use.
func (d deployment) reportUse() bool {
	return len(d.Reports) > 0 && d.Failed == nil && !slices.ContainsFunc(d.Reports, func(r status.Report) bool { return r.LimitsUnread })
}

func (d deployment) live() (words []string) {
	for _, report := range d.Reports {
		for _, change := range report.Changes {
			words = append(words, change.Path)
		}
	}
	return words
}

func (d deployment) muted() (words []string) {
	for _, report := range d.Reports {
		for _, mute := range report.Mutes {
			words = append(words, mute.Path)
		}
	}
	return words
}

// mistyped is the largest edit distance between a word and the command that is suggested.
const mistyped = 2

// didYouMean suggests subcommands with a name similar to the first argument, with their arguments and an example; "" if there is none.
func didYouMean(command *cobra.Command, arguments []string) string {
	if len(arguments) == 0 || len(arguments[0]) <= mistyped {
		return ""
	}
	command.SuggestionsMinimumDistance = mistyped
	names := command.SuggestionsFor(arguments[0])
	if len(names) == 0 {
		return ""
	}
	var meant []string
	for _, name := range names {
		one := below(command, name)
		text := "'" + command.CommandPath() + " " + neededWords(one) + "'"
		if example, _, _ := strings.Cut(strings.TrimSpace(one.Example), "\n"); text != "'"+one.CommandPath()+"'" && example != "" {
			text += ", such as '" + example + "'"
		}
		meant = append(meant, text)
	}
	return "did you mean " + strings.Join(meant, " or ") + "?"
}

// neededWords returns the name of a command with the arguments that it needs.
func neededWords(command *cobra.Command) string {
	words := strings.Fields(command.Use)
	if optional := slices.IndexFunc(words, func(word string) bool { return strings.HasPrefix(word, "[") }); optional >= 0 {
		words = words[:optional]
	}
	return strings.Join(words, " ")
}
