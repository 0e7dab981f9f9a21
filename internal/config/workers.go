package config

// WithShared returns the settings with a running worker's limits and their bucket, delays, folds, rule for flapping, and names of streams and
// subjects, which decide the outcome of events; see [Config.Shared]. A rule that the worker does not report is not set. Any other setting that
// the worker does not report keeps its value. The error is a *Faults, since the worker may have another version.
func (c Config) WithShared(shared map[string]string) (Config, error) {
	theirs := newLoader()
	theirs.config = c
	for _, field := range []any{
		&theirs.config.Limits.Global, &theirs.config.Limits.Category, &theirs.config.Limits.Rules, &theirs.config.Limits.Guarantees, &theirs.config.Limits.ShadowLimits,
		&theirs.config.Limits.Shadow,
	} {
		s := theirs.settings.of(field)
		s.field.SetZero()
		theirs.settings.parse(s)
		usual := s.sharedText()
		s.text = shared[s.Variable]
		s.given = s.text != usual
		s.field.SetZero()
		theirs.settings.parse(s)
	}
	for _, field := range []any{
		&theirs.config.NATS.Stream, &theirs.config.NATS.Subject, &theirs.config.NATS.AckWait, &theirs.config.Room.Stream, &theirs.config.DLQ.Stream, &theirs.config.DLQ.Subject,
		&theirs.config.Journal.Stream, &theirs.config.Limits.Bucket, &theirs.config.Delay.Longest, &theirs.config.Fold, &theirs.config.Flap, &theirs.config.Event.MaxAge, &theirs.config.Event.MaxBytes,
	} {
		s := theirs.settings.of(field)
		text, told := shared[s.Variable]
		if !told {
			continue
		}
		s.field.SetZero()
		s.text, s.given = text, true
		theirs.settings.parse(s)
	}
	if len(theirs.settings.faults) > 0 {
		return Config{}, &theirs.settings.faults
	}
	theirs.config.Limits.origins = theirs.origins()
	return theirs.config, nil
}
