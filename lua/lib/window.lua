-- window.lua: budgets of requests in a sliding window, for the scripts in pacing/.
--
-- A budget is a sorted set with a slot time for each request, past or reserved. If a slot time lies a window or more after the
-- slot time that is `count` requests older, no window has more than `count` requests, whichever way they are counted.

-- Returns a function that returns the slot time of the next request, or of a request behind others. It ignores slot times after
-- `farthest`, which a clock wrote that had run ahead.
local function window_slots(key, count, window, now, farthest)
  return function(behind)
    local windows = math.floor(behind / count)
    local offset = count - 1 - (behind - windows * count)
    local oldest = redis.call('ZRANGE', key, integer(farthest), '-inf', 'BYSCORE', 'REV', 'LIMIT', offset, 1, 'WITHSCORES')[2]
    return math.max(now, oldest and tonumber(oldest) + window or 0) + windows * window
  end
end

-- Returns the first time from a slot time on that no request has: each request is a member of its own.
local function unused(key, slot_time)
  while redis.call('ZSCORE', key, integer(slot_time)) do
    slot_time = slot_time + 1
  end
  return slot_time
end

-- Records a request, removes requests that count no more, and keeps the set until its last request counts no more.
local function add_request(trim, key, slot_time, window, now)
  trim(key, integer(now - window), 1)
  redis.call('ZADD', key, integer(slot_time), integer(slot_time))
  local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  redis.call('PEXPIRE', key, milliseconds(tonumber(last) - now + window))
end
