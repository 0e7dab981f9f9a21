-- doubt.lua: how the record of leases tells whether an event may have been delivered by somebody who held it before.
--
-- A lease that has lapsed leaves that open: its end is a whole number. One that its holder ended, and who certainly delivered
-- nothing, ends half a microsecond before a whole one; a sorted set holds that exactly until the year 2112. An event that was
-- taken over in doubt has a second member, with a line feed in front, until it is delivered, refunded or forgotten. That has the
-- end of the lease as its score, so one that an event left behind which was forgotten says nothing of its next admission.

local function doubt_of(record)
  return '\n' .. record
end

-- The score of a lease that ends now.
local function released(now, in_doubt)
  return in_doubt and integer(now) or integer(now - 1) .. '.5'
end

-- The end of the lease for which an event was marked last; 0 if it is not.
local function mark_of(leased_key, record)
  return tonumber(redis.call('ZSCORE', leased_key, doubt_of(record)) or 0)
end

-- Whether an event whose lease has ended is in doubt. A marked lease that was ended early has an end before that of its mark.
local function ended_in_doubt(leased_key, record, lease_end)
  return lease_end % 1 == 0 or mark_of(leased_key, record) >= lease_end
end
