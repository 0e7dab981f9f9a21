-- line.lua: who waits for the slots of one place.
--
-- The events of a first-level category that one place has denied stand in a line: a sorted set of event -> when its message was
-- stored. A member begins with the sequence of that message, so that the line has the order of the stream, and with the event's
-- cost. When an event comes back stands in the room (see parts/room.lua) under its record. An event keeps its rank however often
-- it is denied.

-- How long an event is waited for that should be back: it may be on its way, or its worker may have died.
local LATE = 60 * SECOND

-- The event's cost and record, as its member in a line tells them.
local function in_line(member)
  local cost, record = string.match(member, '^%d+ (%d+) (.*)$')
  return tonumber(cost), record
end

-- When events come back or came, by their members; nil for those who have left.
local function dues_of(room_key, members)
  local records = {}
  for i, member in ipairs(members) do
    local _, record = in_line(member)
    records[i] = record
  end
  return #records > 0 and redis.call('ZMSCORE', room_key, unpack(records)) or {}
end

-- How many of a line are ahead of an event, which may stand there itself.
local function ahead_of(line_key, stored, member)
  local ahead = redis.call('ZCOUNT', line_key, '-inf', '(' .. stored)
  for _, other in ipairs(redis.call('ZRANGE', line_key, stored, stored, 'BYSCORE')) do
    if other >= member then
      break
    end
    ahead = ahead + 1
  end
  return ahead
end
