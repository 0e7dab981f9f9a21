package config

// WithShared returns the limits with the rules of a running worker's shared settings; see [Config.Shared]. Its error is a *Faults, since the
// worker may have another version.
func (l Limits) WithShared(shared map[string]string) (Limits, error) {
	theirs := newLoader()
	theirs.config.Limits = l
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
	if len(theirs.settings.faults) > 0 {
		return Limits{}, &theirs.settings.faults
	}
	theirs.config.Limits.origins = theirs.origins()
	return theirs.config.Limits, nil
}

// WithShared returns the settings with a running worker's limits, delays, folds, rule for flapping, and names of streams and subjects, which decide the outcome of
// events. A setting that the worker does not report keeps its value. It returns the errors of [Limits.WithShared].
func (c Config) WithShared(shared map[string]string) (Config, error) {
	limits, err := c.Limits.WithShared(shared)
	if err != nil {
		return Config{}, err
	}
	theirs := newLoader()
	theirs.config = c
	theirs.config.Limits = limits
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
	return theirs.config, nil
}
