package config

// WithShared returns the limits with the rules of a running worker's shared settings; see [Config.Shared]. Its error is a *Faults, since the
// worker may have another version.
func (l Limits) WithShared(shared map[string]string) (Limits, error) {
	theirs := newLoader()
	theirs.Limits = l
	for _, field := range []any{
		&theirs.Limits.Global, &theirs.Limits.Category, &theirs.Limits.Rules, &theirs.Limits.Guarantees, &theirs.Limits.ShadowLimits,
	} {
		s := theirs.setting(field)
		s.field.SetZero()
		theirs.parse(s)
		usual := s.sharedText()
		s.text = shared[s.Variable]
		s.given = s.text != usual
		s.field.SetZero()
		theirs.parse(s)
	}
	if len(theirs.faults) > 0 {
		return Limits{}, &theirs.faults
	}
	theirs.Limits.origins = theirs.origins()
	return theirs.Limits, nil
}

// WithShared returns the settings with a running worker's limits, delays, and names of streams and subjects, which decide the outcome of
// events. A setting that the worker does not report keeps its value. It returns the errors of [Limits.WithShared].
func (c Config) WithShared(shared map[string]string) (Config, error) {
	limits, err := c.Limits.WithShared(shared)
	if err != nil {
		return Config{}, err
	}
	theirs := newLoader()
	theirs.Config = c
	theirs.Limits = limits
	for _, field := range []any{
		&theirs.NATS.Stream, &theirs.NATS.Subject, &theirs.NATS.AckWait, &theirs.Room.Stream, &theirs.DLQ.Stream, &theirs.DLQ.Subject,
		&theirs.Journal.Stream, &theirs.Limits.Bucket, &theirs.Limits.Shadow, &theirs.Delay.Longest, &theirs.Event.MaxAge, &theirs.Event.MaxBytes,
	} {
		s := theirs.setting(field)
		text, told := shared[s.Variable]
		if !told {
			continue
		}
		s.field.SetZero()
		s.text, s.given = text, true
		theirs.parse(s)
	}
	if len(theirs.faults) > 0 {
		return Config{}, &theirs.faults
	}
	return theirs.Config, nil
}
