-- refund.lua: returns the slots of events that were definitely not delivered, and forgets the events.
--
-- Only the holder of the lease may return them, so repeating the call changes nothing. Whoever has taken a delivery over since
-- the limits changed does not know where else the event had taken slots: there they stay, and leave with time.
--
-- KEYS
--   1  calls         sorted set: call that granted something -> its time
--   2  leased        sorted set: record -> end of its lease (see parts/doubt.lua)
--   3  done          sorted set: record -> when it may be forgotten
--   4  message       sorted set: record -> stamp of its stored message
--   5  taken         sorted set: record -> time of admission, where a meter needs it
--   6  shadow:taken  likewise, of the events that this state of the shadow admitted; its members name stored messages
--   7… meters        see read_meters
--
-- ARGV
--   lease, retention (microseconds), meters (see read_meters)
--   for each event: record, stamp, the end of the lease as the caller knows it, cost, then for the limits in force and
--   for the shadow: number of its guarantee, else 0, and path (see read_path)
--
-- Returns 1 or 0 for each event: 0 if the lease is not the caller's; then nothing was changed for it.
--
-- Errors: WRONGTYPE is raised before anything is written.

local keys = { calls = KEYS[1], leased = KEYS[2], done = KEYS[3], message = KEYS[4], taken = KEYS[5] }
local shadow_taken_key = KEYS[6]
local next_argument = reader(ARGV, 0)
local next_key = reader(KEYS, 6)
local lease, retention = tonumber(next_argument()), tonumber(next_argument())

redis.call('ZCARD', keys.done)
redis.call('ZCARD', keys.message)
local now, newest_call = deployment_time(keys.calls)
local meters = read_meters(next_argument, next_key, now, lease)
for _, meter in ipairs(meters) do
  read_once(meter)
end

local reply, refunds, not_in_shadow = {}, {}, {}
for record in next_argument do
  local event = { record = record }
  local stamp, lease_end = next_argument(), tonumber(next_argument())
  event.cost = tonumber(next_argument())
  event.guarantee, event.path = tonumber(next_argument()), read_path(next_argument, meters)
  event.shadow_guarantee, event.shadow = tonumber(next_argument()), read_path(next_argument, meters)
  event.name, event.message = log_name(record, stamp), message_name(record, stamp)
  event.other = event.message
  local current = redis.call('ZSCORE', keys.leased, record)
  local held = current and tonumber(current) == lease_end
  if held then
    event.taken = tonumber(redis.call('ZSCORE', keys.taken, record))
    event.taken_in_shadow = tonumber(redis.call('ZSCORE', shadow_taken_key, event.message))
    refunds[#refunds + 1] = event
  end
  reply[#reply + 1] = held and 1 or 0
end

if #refunds == 0 then
  return reply
end

local function give_back(event, path)
  for _, meter in ipairs(path) do
    if event.taken or not meter.algorithm.times_admissions then
      meter.algorithm.give_back(meter, event)
      meter.changed = true
    end
  end
end

check_rights(keys.leased, lease + retention)
forget(keys, now, newest_call, retention)
for _, event in ipairs(refunds) do
  redis.call('ZREM', keys.leased, event.record, doubt_of(event.record))
  redis.call('ZREM', keys.message, event.record)
  redis.call('ZREM', keys.taken, event.record)
  give_back(event, event.path)
  if event.taken_in_shadow then
    event.taken, event.guarantee = event.taken_in_shadow, event.shadow_guarantee
    event.name, event.other = event.message, event.message .. '\n' .. integer(event.taken)
    give_back(event, event.shadow)
    not_in_shadow[#not_in_shadow + 1] = event.message
  end
end
in_pieces('ZREM', shadow_taken_key, not_in_shadow)
for _, meter in ipairs(meters) do
  if meter.changed then
    meter.algorithm.write(meter)
  end
end
return reply
