-- doubt.lua: how the set `leased` tells whether an earlier holder of a lease may have delivered the event.
--
-- A lapsed lease leaves that open: the event is in doubt. The end of such a lease is a whole number. A holder that certainly
-- delivered nothing releases its lease: the end then is half a microsecond before a whole number. A sorted set holds such
-- scores exactly until the year 2112.
--
-- An event that a caller reclaimed in doubt has a mark: a second member, a line feed and the event key, until the event is
-- delivered, refunded or forgotten. The mark's score is the end of the lease, so an old mark does not affect a later
-- admission of the event, unless the clock has gone back between them: then the event counts as in doubt.

local function doubt_of(event_key)
  return '\n' .. event_key
end

-- Returns the score of a lease that its holder releases now.
local function released(now, in_doubt)
  return in_doubt and integer(now) or integer(now - 1) .. '.5'
end

-- Returns the end of the last marked lease of an event or 0 if it has no mark.
local function mark_of(leased_key, event_key)
  return tonumber(redis.call('ZSCORE', leased_key, doubt_of(event_key)) or 0)
end

-- Returns whether an event with an expired lease is in doubt. A marked lease that was released ends
-- before its mark.
local function ended_in_doubt(leased_key, event_key, lease_end)
  return lease_end % 1 == 0 or mark_of(leased_key, event_key) >= lease_end
end
