-- room.lua: which events of a first-level category wait. A sorted set has event -> when it is due. An event has one member
-- for each unit of its weight.

-- The lifetime and the number of events after they were due. A redelivery of the message before then finds its event.
local REMEMBERED, MOST_REMEMBERED = 3600 * SECOND, 50000

-- Longer than the lifetime of every record of a waiting event.
local LONGEST_KEPT = 366 * 24 * 3600 * SECOND

-- Returns the members of an event that are due after a time.
local function waiting_members(key, event, time)
  local members, weight = {}, 1
  local due = redis.call('ZSCORE', key, event)
  while due do
    if tonumber(due) > time then
      members[#members + 1] = slot_member(event, weight)
    end
    weight = weight + 1
    due = redis.call('ZSCORE', key, slot_member(event, weight))
  end
  return members
end

-- Makes members due at a time.
local function make_due(key, members, time)
  local scored = {}
  for i, member in ipairs(members) do
    scored[2 * i - 1], scored[2 * i] = integer(time), member
  end
  in_pieces('ZADD', key, scored)
end

-- Adds { time, event, … }, removes events, and removes events that were due long ago. Returns the expiry of the set
-- (milliseconds).
local function write_room(key, added, removed, now)
  check_rights(key, LONGEST_KEPT)
  local long_ago = redis.call('ZCOUNT', key, '-inf', integer(now - REMEMBERED))
  local surplus = math.max(long_ago, redis.call('ZCOUNT', key, '-inf', integer(now)) - MOST_REMEMBERED)
  if surplus > 0 then
    in_pieces('ZREM', key, redis.call('ZRANGE', key, 0, math.min(surplus, PIECE) - 1))
  end
  in_pieces('ZREM', key, removed)
  in_pieces('ZADD', key, added)
  local last = tonumber(redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2])
  local kept = milliseconds(math.max((last or now) - now, 0) + REMEMBERED)
  redis.call('PEXPIRE', key, kept)
  return kept
end

-- Records when an event is due. Returns the expiry of the set (milliseconds).
local function enter_room(key, event, weight, now, due)
  local added = {}
  for w = 1, weight do
    added[2 * w - 1], added[2 * w] = integer(due), slot_member(event, w)
  end
  return write_room(key, added, {}, now)
end
