package cli

import (
	"errors"

	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"
)

// duration is the value of a flag, in the notation of the settings.
type duration model.Duration

// durationVar defines a flag without a default.
func durationVar(cmd *cobra.Command, d *duration, name, usage string) {
	cmd.Flags().Var(d, name, usage)
	cmd.Flags().Lookup(name).DefValue = "" // help shows no default
}

// Set implements pflag.Value.
func (d *duration) Set(text string) error {
	parsed, err := model.ParseDuration(text)
	if err != nil {
		return errors.New("expected a number with a unit, such as 30m, 2h or 7d")
	}
	*d = duration(parsed)
	return nil
}

func (d *duration) String() string { return model.Duration(*d).String() }

// Type implements pflag.Value.
func (d *duration) Type() string { return "duration" }
