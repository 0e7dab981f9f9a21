-- leave.lua: takes events out of their lines that have come to their turn.
--
-- KEYS
--   1  calls    sorted set: call that granted something -> its time
--   2… rooms, one for each first-level category (see parts/room.lua), then lines (see parts/line.lua)
--
-- ARGV
--   number of rooms
--   for each event: record, number of its room, its member in a line, number of its lines, and each
--
-- Returns 1. What was planned for an event stays known, as something that is over, so that a redelivery of the message in which
-- it came first finds it.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

local next_argument = reader(ARGV, 0)
local now = deployment_time(KEYS[1])
local room_count = tonumber(next_argument())
local events = {}
for record in next_argument do
  local event = { record = record, room_key = KEYS[1 + tonumber(next_argument())], member = next_argument(), lines = {} }
  event.due = tonumber(redis.call('ZSCORE', event.room_key, record) or 0)
  for l = 1, tonumber(next_argument()) do
    local line_key = KEYS[1 + room_count + tonumber(next_argument())]
    if redis.call('ZSCORE', line_key, event.member) then
      event.lines[l] = line_key
    end
  end
  events[#events + 1] = event
end

for _, event in ipairs(events) do
  redis.call('ZADD', event.room_key, 'XX', 0, '')
  for _, line_key in pairs(event.lines) do
    redis.call('ZREM', line_key, event.member)
    if event.due > now then
      redis.call('ZADD', event.room_key, 'XX', integer(now), event.record)
    end
  end
end
return 1
