-- doubt.lua: how the set `leased` shows whether an earlier holder of a lease may have delivered the event.
--
-- A lapsed lease leaves that open: the event is in doubt. The end of such a lease is a whole number. If the holder certainly
-- delivered nothing, the end is half a microsecond before a whole number: a holder that releases its lease records that, and a
-- holder that waits until it delivers the event. A sorted set holds such scores exactly until the year 2112.
--
-- An event that a caller reclaimed in doubt has a mark: a second member, a line feed and the event key, until the event is
-- delivered, refunded or forgotten. The mark's score is the end of the lease, so an old mark does not affect a later
-- admission of the event, unless the clock has gone back between them: then the event counts as in doubt.

local function doubt_of(event_key)
  return '\n' .. event_key
end

-- Returns whether a lease has not lapsed. An end that lies beyond every lease that could be granted now is of a clock that ran ahead.
local function is_held(lease_end, now, lease)
  return lease_end > now and lease_end <= now + lease + TOLERANCE
end

-- Returns the score of a lease with that end: whether its holder delivered nothing so far.
local function lease_score(lease_end, delivered_nothing)
  return delivered_nothing and integer(lease_end - 1) .. '.5' or integer(lease_end)
end

-- Returns the end of the last marked lease of an event or 0 if it has no mark.
local function mark_of(leased_key, event_key)
  return tonumber(redis.call('ZSCORE', leased_key, doubt_of(event_key)) or 0)
end

-- Returns whether an event with an expired lease is in doubt. A marked lease whose holder delivered nothing ends before its
-- mark.
local function ended_in_doubt(leased_key, event_key, lease_end)
  return lease_end % 1 == 0 or mark_of(leased_key, event_key) >= lease_end
end
