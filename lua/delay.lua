-- delay.lua: plans when a denied event comes back, instead of being dropped. The events of a first-level category that wait for
-- one place come back in the order in which they were stored, each when its slots are free: after those that are taken now, and
-- after those of the events ahead of it, by the rules of the limit.
--
-- KEYS
--   1  calls        sorted set: call that granted something -> its time
--   2  room:…       sorted set: event that waits, or waited in the last hour -> when it is due, or was (see parts/room.lua)
--   3  pairs:…      hash: see pair_book
--   4  pairs:until:…  sorted set: see pair_book
--   5  leased       sorted set: record -> end of its lease
--   6  log          sorted set: the log of the place (see algorithms/log.lua), or a key that is not there
--   7… lines of the places on the event's path (see parts/line.lua)
--
-- ARGV
--   record, whether its ID was derived from the stored message ("1" or "0"), when that was stored (microseconds), its member in
--   a line, how much room it takes
--   time until the next slots open, the longest that the event may still wait (microseconds)
--   kind of limit: "log", "fixed", "leaky", "inflight" or "rate"; its window (microseconds) and slots; cost of the event
--   most room that events may take, whether this one has waited before ("1" or "0"), its pair if it is a firing event, else ''
--   number of lines, which of them is that of the place
--
-- Returns the time until the event comes back (microseconds), and
--   1 if that is planned, or was by an earlier call for the same message
--   or, with the time 0: 2 if too many others wait, 3 if it would be too late, 4 if another message with its ID waits
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

local PLANNED, TOO_MANY, TOO_LATE, DUPLICATE = 1, 2, 3, 4

-- Longer than anything here is kept.
local FAR = 366 * 24 * 3600 * SECOND

-- How far apart events come back whose slots open at the same time, at most: so they keep their order.
local SPREAD = SECOND

-- How many of those ahead are looked at one by one, and how many at once.
local LOOKED_AT, AT_ONCE = 256, 64

local calls_key, room_key, until_key, leased_key, log_key = KEYS[1], KEYS[2], KEYS[4], KEYS[5], KEYS[6]
local next_argument = reader(ARGV, 0)
local record, is_derived, stored = next_argument(), next_argument() == '1', next_argument()
local member, weight = next_argument(), tonumber(next_argument())
local wait, longest = tonumber(next_argument()), tonumber(next_argument())
local kind, window, slots = next_argument(), tonumber(next_argument()), tonumber(next_argument())
local cost, most, has_waited, pair = tonumber(next_argument()), tonumber(next_argument()), next_argument() == '1', next_argument()
local line_count, own = tonumber(next_argument()), tonumber(next_argument())
local line_key = KEYS[6 + own]

local now = deployment_time(calls_key)
local book = pair_book(KEYS[3], until_key, now, longest + REMEMBERED)
local taken_room = redis.call('ZCOUNT', room_key, '(' .. integer(now), '+inf')
local planned = tonumber(redis.call('ZSCORE', room_key, record) or 0)
local stands = false
for l = 1, line_count do
  stands = redis.call('ZSCORE', KEYS[6 + l], member) and true or stands
end
if planned > now and not has_waited then
  if stands then
    return { planned - now, PLANNED }
  elseif not is_derived then
    return { 0, DUPLICATE }
  end
end

local entry = pair ~= '' and read_pair(book, pair) or nil
local _, waiter = awaited(entry)

-- The pair is marked unless it is open, another event of it waits, or the message of one is on its way: that is so as long as
-- it is leased.
local function may_mark()
  local under_way = pair_text(entry, UNDER_WAY)
  if under_way then
    return tonumber(redis.call('ZSCORE', leased_key, under_way) or 0) <= now
  end
  return not entry or waiter == record
end
local marks = pair ~= '' and may_mark()

-- What is ahead in the line, from the nearest on: the sum of the costs, when the last of them comes back, the cost of the
-- nearest, and, if so many are ahead that one of them has to leave the window first, when that one comes back.
local function look_ahead()
  local ahead = { cost = 0, count = 0, last = 0, nearest = 0, leaving = nil }
  local left = ahead_of(line_key, stored, member)
  local looked_at = 0
  while left > 0 and looked_at < LOOKED_AT and not ahead.leaving do
    local from = math.max(0, left - AT_ONCE)
    local members = redis.call('ZRANGE', line_key, from, left - 1)
    local dues = dues_of(room_key, members)
    for i = #members, 1, -1 do
      local due = tonumber(dues[i] or nil)
      if due and due > now - LATE then
        local its_cost = in_line(members[i])
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
  if left > 0 and ahead.count > 0 and not ahead.leaving then -- the others cost the same, as far as is known
    local each = ahead.cost / ahead.count
    local further = math.floor((slots - cost - ahead.cost) / each) + 1
    local other = redis.call('ZRANGE', line_key, math.max(0, left - further), math.max(0, left - further))
    local due = tonumber(dues_of(room_key, other)[1] or nil)
    ahead.cost = ahead.cost + each * math.min(left, further)
    ahead.leaving = further <= left and due or nil
  end
  return ahead
end

-- When so many slots have left the window that are taken now that the event finds room behind those ahead of it.
local function left_the_log(ahead)
  local from = integer(now - window)
  local taken = redis.call('ZCOUNT', log_key, '(' .. from, integer(now + TOLERANCE))
  local leaving = math.min(math.ceil(taken + ahead.cost + cost - slots), taken)
  if leaving < 1 then
    return 0
  end
  local rank = redis.call('ZCOUNT', log_key, '-inf', from) + leaving - 1
  return tonumber(redis.call('ZRANGE', log_key, rank, rank, 'WITHSCORES')[2]) + window
end

-- When the event finds its slots behind those ahead of it.
local function behind(ahead)
  if kind == 'leaky' or kind == 'rate' then
    return ahead.last + math.ceil((kind == 'leaky' and ahead.nearest or cost) * window / slots)
  end
  local time = ahead.last + math.min(SPREAD, math.floor(window / slots))
  if kind == 'log' then
    time = math.max(time, left_the_log(ahead))
  end
  if ahead.leaving and kind == 'log' then
    time = math.max(time, ahead.leaving + window)
  elseif ahead.leaving and kind == 'fixed' then
    time = math.max(time, (math.floor(ahead.leaving / window) + 1) * window)
  end
  return time
end

local comes_back = now + math.max(wait, 1)
local ahead = look_ahead()
if ahead.count > 0 then
  comes_back = math.max(comes_back, behind(ahead))
end

local refusal
if comes_back - now > longest then
  refusal = TOO_LATE
elseif taken_room + weight > most and not has_waited and planned <= now then
  refusal = TOO_MANY
end
if refusal then
  if waiter == record then
    check_rights(until_key, FAR)
    remove_pair(book, pair)
    write_book(book)
  end
  if stands then
    for l = 1, line_count do
      redis.call('ZREM', KEYS[6 + l], member)
    end
  end
  return { 0, refusal }
end

check_rights(line_key, FAR)
if marks then
  put_pair(book, pair, WAITING .. integer(comes_back) .. ' ' .. record, comes_back + REMEMBERED)
  write_book(book)
end
local kept = enter_room(room_key, record, weight, now, comes_back)
-- Those at the front who have left, or have not come back for long.
local front, gone = redis.call('ZRANGE', line_key, 0, AT_ONCE - 1), {}
for i, due in ipairs(dues_of(room_key, front)) do
  if tonumber(due or 0) <= now - LATE then
    gone[#gone + 1] = front[i]
  end
end
in_pieces('ZREM', line_key, gone)
for l = 1, line_count do
  if l ~= own and stands then
    redis.call('ZREM', KEYS[6 + l], member)
  end
end
redis.call('ZADD', line_key, stored, member)
redis.call('PEXPIRE', line_key, kept)
return { comes_back - now, PLANNED }
