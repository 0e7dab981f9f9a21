-- folded.lua: the record of an event that was folded into a message of its key.
--
-- The event is recorded like a delivered event. Its score in the set `taken` has its number in the message, and the minute in which the
-- message was posted. The score is negative, since times of admission are positive.

local MINUTE, NUMBERS = 60 * SECOND, 1e8

-- What the number of an event exceeds that was folded because its key is flapping.
local OF_FLAP = NUMBERS / 2

-- Returns an event's number in its message, and the minute in which the message was posted; nil for an event that is not folded.
local function folded_as(taken_key, event_key)
  local score = tonumber(redis.call('ZSCORE', taken_key, event_key) or 0)
  if score < 0 then
    return -score % NUMBERS, math.floor(-score / NUMBERS)
  end
end
