-- updates.lua: updates of one message, for the scripts in pacing/. The states of a message have an order: the larger number is newer.
--
-- The value of a message has five numbers: the order of the newest state that has asked, the slot time of the reserved update
-- (0: there is none), the order of the state whose update began last, when that update began, the order of the state that the
-- message shows.

-- How long a message is remembered after its newest request: longer than the room keeps an older state behind a newer one.
local MESSAGE_KEPT = 3600 * SECOND

local function read_message(key)
  local value = redis.call('GET', key)
  local newest, slot, running, began, done = string.match(value or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  return {
    is_known = value,
    newest = tonumber(newest) or 0, slot = tonumber(slot) or 0, running = tonumber(running) or 0, began = tonumber(began) or 0,
    done = tonumber(done) or 0,
  }
end

-- Records what is known of a message whose update waits for a time.
local function write_message(key, m, wait)
  local value = integer(m.newest) .. ' ' .. integer(m.slot) .. ' ' .. integer(m.running) .. ' ' .. integer(m.began) .. ' ' .. integer(m.done)
  redis.call('SET', key, value, 'PX', milliseconds(wait + MESSAGE_KEPT))
end
