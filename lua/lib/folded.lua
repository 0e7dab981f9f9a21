-- folded.lua: the record of an event that was folded into a message of its key.
--
-- The event is recorded like a delivered event. Its value in the hash `taken` has its number in the message, and the minute in which the
-- message was posted.

local MINUTE = 60 * SECOND

-- What the number of an event exceeds that was folded because its key is flapping.
local OF_FLAP = 5e7

local function folded_value(number, minute)
  return 'folded ' .. integer(number) .. ' ' .. integer(minute)
end

-- Returns an event's number in its message, and the minute in which the message was posted; nil for an event that is not folded.
local function folded_as(taken_key, event_key)
  local number, minute = string.match(redis.call('HGET', taken_key, event_key) or '', '^folded (%d+) (%d+)$')
  return tonumber(number), tonumber(minute)
end
