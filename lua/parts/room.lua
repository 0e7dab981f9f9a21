-- room.lua: what waits of a first-level category. A sorted set holds each event that waits, and when it is due; a large one takes
-- more than one member.

-- How long an event is remembered that was due, so that a redelivery of the message before finds it, and how many are.
local REMEMBERED, MOST_REMEMBERED = 3600 * SECOND, 50000

-- Adds { time, event, … }, removes events, and forgets those that were due long ago. Returns how long the set is kept then
-- (milliseconds).
local function write_room(key, added, removed, now)
  check_rights(key, 366 * 24 * 3600 * SECOND) -- longer than anything waits
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

-- Notes when an event is due.
local function enter_room(key, event, weight, now, due)
  local added = {}
  for place = 1, weight do
    added[2 * place - 1], added[2 * place] = integer(due), slot_member(event, place)
  end
  return write_room(key, added, {}, now)
end
