-- verdicts.lua: the answers about an event. Verdict in Go has these numbers. README.md lists what the worker does.

local ADMITTED = 1 -- the event has its slots or its pair in resolve.lua; the caller has the lease
local DENIED = 2 -- a limit is full
local EXCEEDS_CAPACITY = 3 -- the cost is above the capacity of a limit
local RECLAIMED = 4 -- the event was admitted before and its lease had ended; the caller has the lease
local LEASED = 5 -- another caller has the lease of the event or of its firing event, or the event must wait for slots
local DONE = 6 -- this stored message was delivered
local DUPLICATE = 7 -- another stored message with this event key was admitted
local UNKNOWN = 8 -- the cost is 0 or the event is muted, and nothing is recorded about the event
local UNPAIRED = 9 -- the event resolves nothing
local FOLDED = 10 -- the event is counted in a message of its key
