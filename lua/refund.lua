-- refund.lua: returns the slots of events that were definitely not delivered, and forgets the events.
--
-- Only the holder of the lease may return them, so repeating the call changes nothing.
--
-- KEYS
--   1  leased   sorted set: record -> end of its lease
--   2  message  sorted set: record -> stamp of its stored message
--   3… logs     sorted sets of the nodes on the events' paths
--
-- ARGV
--   for each event: record, stamp, the end of the lease as the caller knows it, cost,
--   number of logs; for each: its index, from 1
--
-- Returns 1 or 0 for each event: 0 if the lease is not the caller's; then nothing was changed for it.
--
-- Errors: WRONGTYPE is raised before anything is written.

local leased_key, message_key = KEYS[1], KEYS[2]
local KEYS_BEFORE_LOGS = 2

local reply, refunds = {}, {}
local position = 0
local function next_argument()
  position = position + 1
  return ARGV[position]
end
for log = KEYS_BEFORE_LOGS + 1, #KEYS do
  redis.call('ZCARD', KEYS[log]) -- a key of the wrong type must be found before anything is written
end
redis.call('ZCARD', message_key)
while position < #ARGV do
  local event = { record = next_argument(), stamp = next_argument() }
  local lease_end = tonumber(next_argument())
  event.cost, event.logs = tonumber(next_argument()), {}
  for i = 1, tonumber(next_argument()) do
    event.logs[i] = KEYS[KEYS_BEFORE_LOGS + tonumber(next_argument())]
  end
  local current = redis.call('ZSCORE', leased_key, event.record)
  local held = current and tonumber(current) == lease_end
  if held then
    refunds[#refunds + 1] = event
  end
  reply[#reply + 1] = held and 1 or 0
end

for _, event in ipairs(refunds) do
  redis.call('ZREM', leased_key, event.record)
  redis.call('ZREM', message_key, event.record)
  local name, other = log_names(event.record, event.stamp)
  for _, log in ipairs(event.logs) do
    for slot = 1, event.cost do
      if redis.call('ZREM', log, slot_member(other, slot)) == 0 then
        redis.call('ZREM', log, slot_member(name, slot))
      end
    end
  end
end
return reply
