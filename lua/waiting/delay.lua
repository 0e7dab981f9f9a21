-- delay.lua: plans when a denied event comes back, instead of being dropped.
--
-- The events of a first-level category that wait for slots of one path come back in the order in which they were stored. An
-- event comes back when the limit will have slots for it, after the slots in use now and the slots of the events
-- ahead of it.
--
-- KEYS
--   1   calls          sorted set: nonce of a call that granted something -> its time
--   2   room:…         sorted set: event that waits or waited in the last hour -> when it is or was, due (see lib/room.lua)
--   3   pairs:…        hash: a book of pairs (see lib/pairs.lua)
--   4   pairs:until:…  sorted set: a book of pairs (see lib/pairs.lua)
--   5   leased         sorted set: event key -> end of the lease (see lib/doubt.lua)
--   6   done           sorted set: event key of a delivered event -> when its record expires
--   7   log:… or another bucket of the limit's path: what the limit counts with (see algorithms/)
--   8…  line:…         sorted set: the queues of the event's path (see lib/queue.lua)
--
-- ARGV
--   event key, whether its ID was derived from the stored message ("1" or "0"), when the message was stored (microseconds), its
--   member of a queue, its weight in the room
--   time until the next slots open, the longest time that the event may still wait (microseconds)
--   how the limit frees slots: "window", "boundary", "spacing", "rate", "estimate" or "delivery"; its algorithm, window
--   (microseconds), slots and burst; cost of the event
--   largest weight of all waiting events, whether this event has waited before ("1" or "0"), its pair if it is a firing event,
--   else '', and then the version of its message
--   number of queues, number of the queue of the limit's path
--
-- Returns the time until the event comes back (microseconds), and
--   1 if this call or an earlier call for this message planned it
--   or, with the time 0: 2 if too many events wait, 3 if the event would come back too late, 4 if another message with its event
--   key waits
--
-- Errors: WRONGTYPE, NOPERM, and an error for another way of freeing slots are raised before anything is written.

--@include lib/buckets algorithms lib/records lib/queue lib/pairs lib/room

local PLANNED, TOO_MANY, TOO_LATE, DUPLICATE = 1, 2, 3, 4

-- The longest time between the returns of two events whose slots open together: enough to keep their order.
local SPREAD = SECOND

-- How many of the events ahead are looked at one by one, and how many are read at once.
local LOOKED_AT, AT_ONCE = 256, 64

local calls_key, room_key, until_key, leased_key, done_key, bucket_key = KEYS[1], KEYS[2], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local KEYS_BEFORE_QUEUES = 7
local next_argument = reader(ARGV, 0)
local event_key, is_derived, stored = next_argument(), next_argument() == '1', next_argument()
local member, weight = next_argument(), tonumber(next_argument())
local wait, max_wait = tonumber(next_argument()), tonumber(next_argument())
local freed, algorithm = next_argument(), algorithms[next_argument()]
local window, slots, burst = tonumber(next_argument()), tonumber(next_argument()), tonumber(next_argument())
local cost, max_weight = tonumber(next_argument()), tonumber(next_argument())
local has_waited, pair, version = next_argument() == '1', next_argument(), tonumber(next_argument())
local queue_count, own = tonumber(next_argument()), tonumber(next_argument())
local queue_key = KEYS[KEYS_BEFORE_QUEUES + own]

local now = deployment_time(calls_key)
local book = pair_book(KEYS[3], until_key, now, max_wait + LATE_RETURN)
local waiting = redis.call('ZCOUNT', room_key, '(' .. integer(now), '+inf')
local planned = tonumber(redis.call('ZSCORE', room_key, event_key) or 0)
local is_queued = false
for q = 1, queue_count do
  is_queued = redis.call('ZSCORE', KEYS[KEYS_BEFORE_QUEUES + q], member) and true or is_queued
end
if planned > now and not has_waited then
  if is_queued then
    return { planned - now, PLANNED }
  elseif not is_derived then
    return { 0, DUPLICATE }
  end
end

local known = pair ~= '' and read_deliveries(book, pair)[event_key]

-- Sums up the events ahead in the queue, from the nearest to the first, until their costs leave no room in one window. An event that
-- was just admitted has its slots, so it does not count although it is still in the queue.
--   cost     sum of their costs
--   count    how many they are
--   last     when the last of them comes back
--   nearest  cost of the nearest
--   leaving  when the event comes back that has to leave the window first; nil if all fit
local function look_ahead()
  local ahead = { cost = 0, count = 0, last = 0, nearest = 0, leaving = nil }
  local left = ahead_of(queue_key, stored, member)
  local looked_at = 0
  while left > 0 and looked_at < LOOKED_AT and not ahead.leaving do
    local from = math.max(0, left - AT_ONCE)
    local members = redis.call('ZRANGE', queue_key, from, left - 1)
    local dues = dues_of(room_key, members)
    for i = #members, 1, -1 do
      local due = tonumber(dues[i] or nil)
      local its_cost, its_key = parse_member(members[i])
      if due and due > now - LATE and not redis.call('ZSCORE', leased_key, its_key) and not redis.call('ZSCORE', done_key, its_key) then
        ahead.nearest = ahead.count == 0 and its_cost or ahead.nearest
        ahead.count, ahead.cost, ahead.last = ahead.count + 1, ahead.cost + its_cost, math.max(ahead.last, due)
        if ahead.cost + cost > slots then
          ahead.leaving = due
          break
        end
      end
    end
    looked_at, left = looked_at + #members, from
  end
  if left > 0 and ahead.count > 0 and not ahead.leaving then -- assume an equal average cost of the remaining events
    local each = ahead.cost / ahead.count
    local further = math.floor((slots - cost - ahead.cost) / each) + 1
    local other = redis.call('ZRANGE', queue_key, math.max(0, left - further), math.max(0, left - further))
    local due = tonumber(dues_of(room_key, other)[1] or nil)
    ahead.cost = ahead.cost + each * math.min(left, further)
    ahead.leaving = further <= left and due or nil
  end
  return ahead
end

-- Returns when enough of the slots in use now have left the window for the events ahead and this event.
local function time_of_room(ahead)
  local from = integer(now - window)
  local taken = redis.call('ZCOUNT', bucket_key, '(' .. from, integer(now + TOLERANCE))
  local leaving = math.min(math.ceil(taken + ahead.cost + cost - slots), taken)
  if leaving < 1 then
    return 0
  end
  local rank = redis.call('ZCOUNT', bucket_key, '-inf', from) + leaving - 1
  return tonumber(redis.call('ZRANGE', bucket_key, rank, rank, 'WITHSCORES')[2]) + window
end

-- Each function returns when the event finds its slots behind the events ahead, by how the limit frees slots.
local behind = {}

function behind.delivery(ahead)
  return ahead.last + math.min(SPREAD, math.floor(window / slots))
end

-- The limit may have slots for all events ahead: a limit that has just replaced another starts with all its slots, while the events wait
-- only for each other. If the algorithm is not in force any more or the burst is too small for all of them, the events ahead use up the slots.
function behind.rate(ahead)
  local together = ahead.cost + cost
  if not algorithm or together > burst then
    return ahead.last + math.ceil(cost * window / slots)
  end
  local bucket = { key = bucket_key, now = now, limit = { count = slots, window = window, burst = burst } }
  algorithm.read(bucket)
  local _, opens = algorithm.wait(bucket, together, 0)
  return math.max(behind.delivery(ahead), now + (opens or 0))
end

behind.estimate = behind.rate

function behind.spacing(ahead)
  return ahead.last + math.ceil(ahead.nearest * window / slots)
end

function behind.window(ahead)
  local time = math.max(behind.delivery(ahead), time_of_room(ahead))
  return ahead.leaving and math.max(time, ahead.leaving + window) or time
end

function behind.boundary(ahead)
  local time = behind.delivery(ahead)
  return ahead.leaving and math.max(time, (math.floor(ahead.leaving / window) + 1) * window) or time
end

local time_behind = behind[freed]
if not time_behind then
  return redis.error_reply('ERR unknown way of freeing slots: ' .. freed)
end

local comes_back = now + math.max(wait, 1)
local ahead = look_ahead()
if ahead.count > 0 then
  comes_back = math.max(comes_back, time_behind(ahead))
end

-- Removes the event from its queues, but not from the queue with the number `but`.
local function leave_queues(but)
  for q = 1, queue_count do
    if q ~= but and is_queued then
      redis.call('ZREM', KEYS[KEYS_BEFORE_QUEUES + q], member)
    end
  end
end

local refusal
if comes_back - now > max_wait then
  refusal = TOO_LATE
elseif waiting + weight > max_weight and not has_waited and planned <= now then
  refusal = TOO_MANY
end
if refusal then
  local waits = planned > now and waiting_members(room_key, event_key, now) or {}
  if known and known.version == version then -- another message with its event key may wait on
    check_rights(until_key, LONGEST_KEPT)
    put_delivery(book, pair, event_key, nil)
    write_book(book)
  end
  leave_queues()
  make_due(room_key, waits, now) -- it does not wait any more
  return { 0, refusal }
end

check_rights(queue_key, LONGEST_KEPT)
if pair ~= '' then
  put_delivery(book, pair, event_key, { version = version, comes_back = comes_back })
  book.kept = comes_back - now + LATE_RETURN
  write_book(book)
end
local kept = enter_room(room_key, event_key, weight, now, comes_back)
-- Remove events from the front that do not wait any more or are late.
local front, gone = redis.call('ZRANGE', queue_key, 0, AT_ONCE - 1), {}
for i, due in ipairs(dues_of(room_key, front)) do
  if tonumber(due or 0) <= now - LATE then
    gone[#gone + 1] = front[i]
  end
end
in_pieces('ZREM', queue_key, gone)
leave_queues(own)
redis.call('ZADD', queue_key, stored, member)
redis.call('PEXPIRE', queue_key, kept)
return { comes_back - now, PLANNED }
