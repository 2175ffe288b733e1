"use strict";
// Everything on a page can be read without this: it searches and sorts a list, finds a comparison or
// shows the numbers of two benches, and reloads a live page.
for (const form of document.querySelectorAll("[data-search]")) {
  const rows = [...document.getElementById(form.dataset.search).tBodies[0].rows];
  const texts = rows.map((row) => row.textContent.toLowerCase().replace(/\s+/g, " "));
  const input = form.querySelector("input");
  const search = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, place) => {
      row.hidden = !words.every((word) => texts[place].includes(word));
      shown += row.hidden ? 0 : 1;
    });
    form.querySelector("output").textContent = words.length ? `${shown} of ${rows.length}` : "";
  };
  form.addEventListener("submit", (event) => event.preventDefault());
  input.addEventListener("input", search);
  form.hidden = false;
  search();
}
for (const table of document.querySelectorAll("[data-sortable]")) {
  const key = (row, column) => row.cells[column].dataset.sort ?? row.cells[column].textContent.trim();
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => sign * key(a, column).localeCompare(key(b, column), "en", { numeric: true }));
      table.tBodies[0].append(...rows);
    });
  });
}
for (const form of document.querySelectorAll("[data-compare]")) {
  const { pages, earlier, names, titles, left_out, cells, specs } = JSON.parse(document.getElementById("choices").textContent);
  const [section, output] = [document.getElementById("pair"), form.querySelector("output")];
  // What is counted in a cell of a bench: [place in specs, shape, metric, unit, value, and as texts value, interval, n].
  const quantity = (cell) => cell.slice(1, 4).join(" ");
  const changed = (before, after) => {
    const [first, second] = [specs[before[0]], specs[after[0]]];
    return Object.keys({ ...first, ...second }).filter((name) => first[name] !== second[name]);
  };
  // Equal configurations, then the only two of a shape and metric, then those that have no counterpart.
  const paired = (before, after) => {
    const left = new Set(before), right = new Set(after), pairs = new Map();
    const match = (alike) => {
      for (const cell of left) {
        const [rivals, others] = [left, right].map((side) => [...side].filter((other) => alike(cell, other)));
        if (rivals.length === 1 && others.length === 1) { pairs.set(cell, others[0]); }
      }
      for (const [cell, other] of pairs) { left.delete(cell); right.delete(other); }
    };
    match((cell, other) => cell[0] === other[0]);
    match((cell, other) => quantity(cell) === quantity(other));
    return [...before.map((cell) => [cell, pairs.get(cell)]), ...[...right].map((cell) => [undefined, cell])];
  };
  // A configuration by its shape, and by the fields that differ within its bench.
  const label = (cell, bench) => {
    const own = specs[cell[0]];
    const varying = Object.keys(own).filter((name) => !["nodes", "gpus", "metric", "unit", "better"].includes(name)
      && bench.some((other) => specs[other[0]][name] !== own[name]));
    return [own.framework, own.model, cell[1], ...varying.map((name) => `${name.split(".").pop()}=${own[name]}`)].join(" ");
  };
  const change = (before, after) => {
    const share = before && after && before[3] === after[3] && before[4] > 0 && after[4] > 0 ? after[4] / before[4] - 1 : null;
    return share === null ? "–" : `${share < 0 ? "−" : "+"}${Math.abs(100 * share).toFixed(1)}%`;
  };
  const side = (cell) => (cell ? cell.slice(5) : ["–", "–", "–"]);
  const show = (before, after) => {
    const rows = paired(cells[before], cells[after]).map(([first, second]) => {
      const row = document.createElement("tr");
      const [known, bench] = first ? [first, cells[before]] : [second, cells[after]];
      const differing = first && second ? changed(first, second).map((name) =>
        `${name.split(".").pop()}: ${specs[first[0]][name] ?? "(not set)"} → ${specs[second[0]][name] ?? "(not set)"}`) : [];
      const where = first && second ? differing.join(", ") : `only in the ${first ? "first" : "second"}`;
      const texts = [label(known, bench), `${known[2]}, ${known[3]}`, ...side(first), ...side(second), change(first, second), where];
      texts.forEach((text, place) => {
        const cell = document.createElement(place ? "td" : "th");
        if (!place) cell.scope = "row";
        cell.textContent = text;
        row.append(cell);
      });
      return row;
    });
    section.querySelector("h2").textContent = `${titles[before]} and ${titles[after]}`;
    section.querySelector("code").textContent = `orch compare ${names[before]} ${names[after]}`;
    section.querySelector("tbody").replaceChildren(...rows);
    const missing = left_out[before] + left_out[after];
    section.querySelector(".on").textContent = !rows.length ? "Neither has a number."
      : missing ? `Without ${missing} further configurations.` : "";
    section.hidden = false;
    section.querySelector("h2").focus();
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const [before, after] = [form.elements.first.value, form.elements.second.value].map(Number).sort((a, b) => a - b);
    section.hidden = true;
    output.textContent = before === after ? "choose two benches" : "";
    if (before === after) return;
    if ((earlier[after] ?? []).includes(before)) {
      location.href = `compare/${pages[after]}.html#${pages[before]}`;
    } else {
      show(before, after);
    }
  });
  form.hidden = false;
}
const live = document.querySelector("#live[data-every]");
if (live) {
  const seconds = Number(live.dataset.every);
  const atEnd = (box) => box.scrollTop + box.clientHeight >= box.scrollHeight - 4;
  const toEnd = (box) => { box.scrollTop = box.scrollHeight; };
  live.querySelectorAll(".log").forEach(toEnd);
  const again = async () => {
    // A page that nobody sees asks for nothing, and text that is being selected stays.
    if (document.visibilityState === "visible" && !String(getSelection())) {
      try {
        const answer = await fetch(location.href, { cache: "no-store" });
        const made = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
        if ("whole" in live.dataset && answer.ok) { location.reload(); return; }
        const places = [...live.querySelectorAll(".log")].map((box) => (atEnd(box) ? null : box.scrollTop));
        const [x, y, focused] = [scrollX, scrollY, [...live.querySelectorAll("a, [tabindex]")].indexOf(document.activeElement)];
        live.replaceChildren(...made.childNodes);
        live.querySelectorAll(".log").forEach((box, place) => {
          if (places[place] == null) toEnd(box); else box.scrollTop = places[place];
        });
        if (focused >= 0) live.querySelectorAll("a, [tabindex]")[focused]?.focus({ preventScroll: true });
        scrollTo(x, y);
        live.removeAttribute("data-lost");
      } catch {
        live.dataset.lost = "";
      }
    }
    setTimeout(again, 1000 * seconds);
  };
  setTimeout(again, 1000 * seconds);
}
