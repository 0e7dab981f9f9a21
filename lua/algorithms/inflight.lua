-- inflight.lua: the concurrency limit. At most `count` slots belong to deliveries that go on. A slot returns when its delivery
-- ends or, if its worker died, after the window, but not before its lease has lapsed.
--
-- Promise: exact. The time of the next slot is the latest possible: a delivery may end sooner. Burst at the edge: none. Memory:
-- one member of a sorted set for each slot taken, about 100 bytes.
--
-- State: sorted set: slot of a message name -> when the slot returns by itself.

algorithms.inflight = { follows_delivery = true }

function algorithms.inflight.read(bucket)
  bucket.kept = math.max(bucket.limit.window, bucket.lease)
  bucket.upto = integer(bucket.now + bucket.kept + TOLERANCE) -- scores beyond it are of a clock that ran ahead
  bucket.stored = redis.call('ZCOUNT', bucket.key, '(' .. bucket.time, bucket.upto)
  bucket.used = bucket.stored
end

-- Returns when the n-th slot returns by itself. The slots of this call return last.
local function returns_at(bucket, n)
  if not bucket.pending then
    local offset = integer(n - 1)
    local reply = redis.call('ZRANGE', bucket.key, '(' .. bucket.time, bucket.upto, 'BYSCORE', 'LIMIT', offset, 1, 'WITHSCORES')
    return tonumber(reply[2])
  end
  local times = {}
  local stored = redis.call('ZRANGE', bucket.key, '(' .. bucket.time, bucket.upto, 'BYSCORE', 'WITHSCORES')
  for i = 1, #stored, 2 do
    if not bucket.pending[stored[i]] then
      times[#times + 1] = tonumber(stored[i + 1])
    end
  end
  for _ in pairs(bucket.pending) do
    times[#times + 1] = bucket.now + bucket.kept
  end
  table.sort(times)
  return times[n]
end

function algorithms.inflight.wait(bucket, cost)
  local leaving = bucket.used + cost - bucket.limit.count
  if leaving > 0 then
    return bucket.limit, returns_at(bucket, leaving) - bucket.now
  end
end

-- Collects an event's slots to be written.
local function add_slots(bucket, event)
  bucket.added, bucket.pending = bucket.added or {}, bucket.pending or {}
  for slot = 1, event.cost do
    local member = slot_member(event.message, slot)
    bucket.added[#bucket.added + 1] = integer(bucket.now + bucket.kept)
    bucket.added[#bucket.added + 1] = member
    bucket.pending[member] = true
  end
end

function algorithms.inflight.take(bucket, event)
  add_slots(bucket, event)
  bucket.used = bucket.used + event.cost
end

-- Returns whether a delivery still has its slots. Others may have taken slots that have returned by themselves.
function algorithms.inflight.holds(bucket, event)
  local time = tonumber(redis.call('ZSCORE', bucket.key, event.message) or 0)
  return time > bucket.now and time <= tonumber(bucket.upto)
end

-- Renews the slots that a delivery has.
function algorithms.inflight.renew(bucket, event)
  add_slots(bucket, event)
end

function algorithms.inflight.trim(bucket, trim)
  trim(bucket.key, bucket.time, #(bucket.added or {}) / 2)
end

function algorithms.inflight.write(bucket)
  add_for(bucket.key, bucket.added or {}, milliseconds(bucket.kept + TOLERANCE))
end

function algorithms.inflight.extend(bucket, event)
  local back = integer(bucket.now + bucket.kept)
  for slot = 1, event.cost do
    redis.call('ZADD', bucket.key, 'XX', back, slot_member(event.message, slot))
  end
  redis.call('PEXPIRE', bucket.key, milliseconds(bucket.kept + TOLERANCE))
end

function algorithms.inflight.give_back(bucket, event)
  for slot = 1, event.cost do
    redis.call('ZREM', bucket.key, slot_member(event.message, slot))
  end
end

function algorithms.inflight.restore(bucket, event)
  if not event.delivered then
    algorithms.inflight.take(bucket, event)
  end
end

function algorithms.inflight.used(bucket)
  return bucket.used
end
