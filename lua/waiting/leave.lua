-- leave.lua: removes events from their queues that need not wait any more.
--
-- The room remembers the events as due now, so that a redelivery of the message in which an event came first finds it.
--
-- KEYS
--   1   calls   sorted set: nonce of a call that granted something -> its time
--   2…  rooms, one for each first-level category (see lib/room.lua), then queues (see lib/queue.lua)
--
-- ARGV
--   number of rooms
--   for each event: event key, number of its room, its member of a queue, how many queues it may be in, number of each queue
--
-- Returns 1.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

--@include lib/records lib/room

local next_argument = reader(ARGV, 0)
local now = deployment_time(KEYS[1])
local room_count = tonumber(next_argument())
local events = {}
for event_key in next_argument do
  local event = { room_key = KEYS[1 + tonumber(next_argument())], member = next_argument(), queues = {} }
  for q = 1, tonumber(next_argument()) do
    local queue_key = KEYS[1 + room_count + tonumber(next_argument())]
    if redis.call('ZSCORE', queue_key, event.member) then
      event.queues[q] = queue_key
    end
  end
  event.waiting = next(event.queues) and waiting_members(event.room_key, event_key, now) or {}
  events[#events + 1] = event
end

for _, event in ipairs(events) do
  redis.call('ZADD', event.room_key, 'XX', 0, '')
  for _, queue_key in pairs(event.queues) do
    redis.call('ZREM', queue_key, event.member)
  end
  make_due(event.room_key, event.waiting, now)
end
return 1
