package config

// WithShared returns the settings with a running worker's limits and their bucket, delays, folds, rule for flapping, and names of streams and
// subjects, which decide the outcome of events; see [Config.Shared]. A rule that the worker does not report is not set. Any other setting that
// the worker does not report keeps its value. The error is a *Faults, since the worker may have another version.
func (c Config) WithShared(shared map[string]string) (Config, error) {
	theirs := newLoader()
	theirs.config = c
	s := &theirs.config
	for _, field := range []any{&s.Limits.Global, &s.Limits.Category, &s.Limits.Rules, &s.Limits.Guarantees, &s.Limits.ShadowLimits, &s.Limits.Shadow} {
		s := theirs.of(field)
		s.field.SetZero()
		theirs.parse(s)
		usual := s.sharedText()
		s.text = shared[s.Variable]
		s.given = s.text != usual
		s.field.SetZero()
		theirs.parse(s)
	}
	for _, field := range []any{
		&s.NATS.Stream, &s.NATS.Subject, &s.NATS.AckWait, &s.Room.Stream, &s.DLQ.Stream, &s.DLQ.Subject, &s.Journal.Stream, &s.Limits.Bucket,
		&s.Delay.Longest, &s.Fold, &s.Flap, &s.Event.MaxAge, &s.Event.MaxBytes,
	} {
		s := theirs.of(field)
		if text, reported := shared[s.Variable]; reported {
			s.field.SetZero()
			s.text, s.given = text, true
			theirs.parse(s)
		}
	}
	if len(theirs.faults) > 0 {
		return Config{}, &theirs.faults
	}
	theirs.config.Limits.origins = theirs.origins()
	return theirs.config, nil
}
