// Keeps the page up to date. The server renders and escapes every part; this script puts the parts in place.
"use strict";

(() => {
	const byId = (id) => document.getElementById(id);
	const connection = byId("connection"), news = byId("news"), list = byId("decisions"), stop = byId("stop");
	const held = byId("held"), filter = byId("filter");

	const mostDecisions = 20; // what stands below them is near
	const silence = 10_000; // without a message for so long the connection counts as lost
	const newsEvery = 15_000; // so that somebody who hears the page is not talked over

	let events; // the connection
	let heardAt = Date.now(); // when the last message came; at first, when the page did
	let askedAt = 0; // when the connection was begun
	let answered = true; // whether it has had a message; without a connection, nothing is to be answered
	let retryIn = 1000;
	let retry; // timer of the next attempt
	let ahead = 0; // by how much the server's clock is ahead of this one
	let told = 0; // when the news changed
	let stopped = false;
	let waiting = []; // decisions that came since Stop, the newest first
	let sinceStop = 0; // how many came
	let newest = ""; // when the newest decision was stored
	let missed = 0; // decisions of this connection that came too fast to be shown

	// parse makes nodes of what the server has rendered. Scripts in it would not run.
	function parse(html) {
		const holder = document.createElement("template");
		holder.innerHTML = html;
		localize(holder.content);
		return holder.content;
	}

	const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.dataset.key : undefined);

	// renew gives an element the children of another one, and keeps what is in both, so that focus and selection stay.
	function renew(element, wanted) {
		const kept = new Map();
		for (const child of element.children) {
			if (keyOf(child) !== undefined) kept.set(keyOf(child), child);
		}
		let at = element.firstChild;
		for (const next of [...wanted.childNodes]) {
			const same = keyOf(next) === undefined ? at : kept.get(keyOf(next));
			if (!same || same.nodeName !== next.nodeName || keyOf(same) !== keyOf(next)) {
				element.insertBefore(next, at);
				continue;
			}
			if (same === at) at = at.nextSibling;
			else element.insertBefore(same, at);
			if (same.nodeType === Node.ELEMENT_NODE) renewElement(same, next);
			else if (same.data !== next.data) same.data = next.data;
		}
		while (at) {
			const gone = at;
			at = at.nextSibling;
			gone.remove();
		}
	}

	function renewElement(element, wanted) {
		for (const { name } of [...element.attributes]) {
			const isOpened = name === "open" && element.nodeName === "DETAILS"; // by the reader
			if (!wanted.hasAttribute(name) && !isOpened) element.removeAttribute(name);
		}
		for (const { name, value } of wanted.attributes) {
			if (element.getAttribute(name) !== value) element.setAttribute(name, value);
		}
		renew(element, wanted);
	}

	// keepFocus does something that may move the element that has the focus, which would lose it.
	function keepFocus(change) {
		const focused = document.activeElement;
		change();
		if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
	}

	// countDown writes behind each moment in the future how far away it is. Of a page that is not renewed, it might be past by now.
	function countDown() {
		const isLive = connection.dataset.state === "live";
		for (const moment of document.querySelectorAll("time[data-until]")) {
			const left = Math.ceil((Date.parse(moment.dateTime) - Date.now() - ahead) / 1000);
			const clock = moment.dataset.clock ?? (moment.dataset.clock = moment.textContent);
			const distance = left > 0 ? ` (in ${span(left)})` : " (now)";
			const text = isLive ? clock + distance : clock;
			if (moment.textContent !== text) moment.textContent = text;
		}
	}

	function span(seconds) {
		if (seconds < 60) return `${seconds} s`;
		if (seconds < 600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
		if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
		return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
	}

	function showParts(parts) {
		for (const [name, html] of Object.entries(parts ?? {})) {
			const place = document.querySelector(`[data-part="${name}"]`);
			if (place) keepFocus(() => renew(place, parse(html)));
		}
		countDown();
	}

	function showDecisions(message) {
		// A connection begins with decisions that another one may have had.
		const rows = [...parse(message.decisions ?? "").children].filter((row) => row.dataset.stored > newest);
		newest = rows[0]?.dataset.stored ?? newest;
		if (message.whole) missed = 0;
		missed += message.skipped ?? 0;
		if (!stopped) {
			add(rows);
			return;
		}
		sinceStop += rows.length + (message.skipped ?? 0);
		waiting = rows.concat(waiting).slice(0, mostDecisions);
		held.textContent = `Stopped. ${sinceStop} decisions since then.`;
	}

	function add(rows) {
		keepFocus(() => {
			list.prepend(...rows);
			while (list.children.length > mostDecisions) list.lastElementChild.remove();
		});
		byId("no-decisions").hidden = list.children.length > 0;
		held.textContent = missed > 0 ? `${missed} more came too fast to be shown.` : "";
	}

	stop.addEventListener("click", () => {
		stopped = !stopped;
		stop.textContent = stopped ? "Go on" : "Stop";
		stop.setAttribute("aria-pressed", String(stopped));
		if (stopped) {
			held.textContent = "Stopped.";
			return;
		}
		add(waiting);
		waiting = [];
		sinceStop = 0;
	});

	function setConnection(state, text) {
		if (connection.dataset.state === state) return;
		connection.dataset.state = state;
		connection.textContent = text;
		if (state !== "live") tell(text);
	}

	function tell(text) {
		if (news.textContent === text) return;
		news.textContent = text;
		told = Date.now();
	}

	function receive(event) {
		const message = JSON.parse(event.data);
		const lost = connection.dataset.state === "lost";
		heardAt = Date.now();
		answered = true;
		retryIn = 1000;
		ahead = message.at - heardAt;
		setConnection("live", "Live, renewed every second.");
		showParts(message.parts);
		showDecisions(message);
		if (lost || heardAt - told > newsEvery) tell(message.news);
	}

	// connect begins anew. EventSource tries again by itself only after some failures, so this script does it after all.
	function connect() {
		clearTimeout(retry);
		events?.close();
		askedAt = Date.now();
		answered = false;
		events = new EventSource(`events?filter=${encodeURIComponent(filter.value)}`);
		events.onmessage = receive;
		events.onerror = lose;
	}

	function lose() {
		events.close();
		answered = true; // the next request is not made yet
		setConnection("lost", `Disconnected since ${clockOf(new Date(heardAt))}; retrying`);
		clearTimeout(retry);
		retry = setTimeout(connect, retryIn);
		retryIn = Math.min(2 * retryIn, 10_000);
	}

	let typing;
	function refilter() {
		history.replaceState(null, "", filter.value ? `?filter=${encodeURIComponent(filter.value)}` : location.pathname);
		connect();
	}
	filter.addEventListener("input", () => {
		clearTimeout(typing);
		typing = setTimeout(refilter, 300);
	});
	byId("filtering").addEventListener("submit", (event) => {
		event.preventDefault();
		clearTimeout(typing);
		refilter();
	});

	// Nobody watches a page that is hidden.
	document.addEventListener("visibilitychange", () => {
		if (!document.hidden) {
			connect();
			return;
		}
		clearTimeout(retry);
		events.close();
		setConnection("still", "Not renewed while nobody looks.");
	});

	setInterval(() => {
		countDown();
		const waits = connection.dataset.state === "live" || !answered;
		if (!document.hidden && waits && Date.now() - Math.max(heardAt, askedAt) > silence) lose();
	}, 1000);

	stop.hidden = false;
	if (!document.hidden) connect();
})();
