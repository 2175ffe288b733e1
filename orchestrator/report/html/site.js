"use strict";
// Everything on a page can be read without this: it searches and sorts a list, finds a comparison, and reloads a live page.
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
  const { pages, earlier } = JSON.parse(document.getElementById("choices").textContent);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const chosen = [form.elements.first.value, form.elements.second.value].map(Number).sort((a, b) => a - b);
    const [before, after] = chosen;
    if (before !== after && (earlier[after] ?? []).includes(before)) {
      location.href = `compare/${pages[after]}.html#${pages[before]}`;
    } else {
      const names = chosen.map((place) => decodeURIComponent(pages[place]).replace("~", "/"));
      const why = before === after ? "choose two benches" : `not on this site: orch compare ${names.join(" ")}`;
      form.querySelector("output").textContent = why;
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
