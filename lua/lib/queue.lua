-- queue.lua: the events that wait for slots of one path.
--
-- The events of a first-level category that a limit of one path denied are in a queue, a sorted set with member -> when the
-- event's message was stored. The Redis keys of queues begin with "line:". A member is the sequence of the message, the event's
-- cost and its event key, with blanks between them. The sequence comes first, so events that were stored at one time have the
-- order of the stream. An event keeps its rank however often it is denied. When it comes back is in the room (see lib/room.lua).

-- How long a late event counts as waiting: it may be on its way or its worker may have died.
local LATE = 60 * SECOND

-- Returns the cost and the event key of a member.
local function parse_member(member)
  local cost, event_key = string.match(member, '^%d+ (%d+) (.*)$')
  return tonumber(cost), event_key
end

-- Returns for each member when it comes back or came back, nil if it does not wait.
local function dues_of(room_key, members)
  local event_keys = {}
  for i, member in ipairs(members) do
    local _, event_key = parse_member(member)
    event_keys[i] = event_key
  end
  return #event_keys > 0 and redis.call('ZMSCORE', room_key, unpack(event_keys)) or {}
end

-- Returns how many members of a queue are ahead of a member, which may be in the queue itself.
local function ahead_of(queue_key, stored, member)
  local ahead = redis.call('ZCOUNT', queue_key, '-inf', '(' .. stored)
  for _, other in ipairs(redis.call('ZRANGE', queue_key, stored, stored, 'BYSCORE')) do
    if other >= member then
      break
    end
    ahead = ahead + 1
  end
  return ahead
end
