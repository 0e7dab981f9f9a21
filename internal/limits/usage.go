package limits

// Usage is how full one limit is.
type Usage struct {
	Level string // the node of the limit: LevelGlobal or its path
	Limit string // as configured, such as 10/30m
	Used  int64
	Size  int64
}
