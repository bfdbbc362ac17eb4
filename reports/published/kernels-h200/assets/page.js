// Draws the page's figures from the JSON beside them, and fits its tables to its width. Fetches nothing.
(() => {
  "use strict";
  const options = {
    mode: "vega-lite", renderer: "svg", actions: false, defaultStyle: false, tooltip: { theme: "page" },
  };

  async function draw(figure) {
    const spec = specification(figure);
    const key = needsKey(figure, spec) ? numbered(spec) : null;
    // Afresh, without the listeners of the drawing before.
    const chart = figure.querySelector(".chart").cloneNode();
    figure.querySelector(".key")?.remove();
    figure.querySelector(".chart").replaceWith(chart, ...(key ? [key] : []));
    try {
      const { view } = await window.vegaEmbed(chart, spec, options);
      const svg = chart.querySelector("svg");
      // One image with one description, in place of one for every mark: the table below has their values.
      svg.setAttribute("role", "img");
      svg.setAttribute("aria-label", spec.description);
      svg.firstElementChild.setAttribute("aria-hidden", "true");
      walkable(figure, chart, view);
      figure.dataset.state = "drawn";
    } catch (error) {
      figure.dataset.state = "failed";
      chart.textContent = "This figure could not be drawn here; its SVG and CSV are below.";
      console.error(error);
    }
  }

  const specification = (figure) => JSON.parse(figure.querySelector('script[type="application/json"]').textContent);

  // Where a figure's names stand: on its vertical axis, beside its lines or above its heat maps. From the top.
  function naming({ layer, datasets }) {
    const axes = layer.map(({ encoding }) => encoding.y).filter((y) => y?.axis?.labelLimit);
    if (axes.length) {
      const { scale, axis } = axes[0];
      const lines = axis.labelExpr ? scale.domain.flatMap((name) => name.split(", ")) : scale.domain;
      // A tick at the end of the axis has no name, and so no number; what raises a name of several lines is for these.
      const number = () => axes.forEach(({ axis: it }) => {
        it.labelExpr = "indexof(domain('y'), datum.value) + 1 || ''";
        delete it.labelOffset;
      });
      return { names: scale.domain, lines, number, most: axis.labelLimit, share: 0.3 };
    }
    const named = layer.find(({ name }) => name === "beside" || name === "above");
    if (!named) return null;
    const { text } = named.encoding, rows = datasets[named.data.name];
    rows.sort((a, b) => (b.at ?? 0) - (a.at ?? 0)).forEach((row, place) => (row.key = `${place + 1}`));
    return {
      names: rows.map((row) => row.label), lines: rows.flatMap((row) => row[text.field].split("\n")),
      number: () => (text.field = "key"), most: named.mark.limit ?? Infinity, share: named.name === "above" ? 0.75 : 0.3,
    };
  }

  // Whether names would be cut, or take more of a figure's width than leaves room for what it shows.
  function needsKey(figure, spec) {
    const it = naming(spec), ruler = document.createElement("canvas").getContext("2d");
    ruler.font = `12px ${spec.config.font}`;
    const longest = Math.max(0, ...(it?.lines ?? []).map((line) => ruler.measureText(line).width));
    return Boolean(it) && longest > Math.min(it.most, it.share * figure.clientWidth);
  }

  // Numbers in place of the names, and the list that says which is which.
  function numbered(spec) {
    const { names, number } = naming(spec);
    number();
    const scales = spec.layer.map(({ encoding }) => encoding.color?.scale).filter((scale) => scale?.domain);
    const list = Object.assign(document.createElement("ol"), { className: "key" });
    for (const name of names) {
      const { domain, range } = scales.find((scale) => scale.domain.includes(name)) ?? { domain: [], range: [] };
      const item = list.appendChild(Object.assign(document.createElement("li"), { textContent: name }));
      item.style.borderColor = range[domain.indexOf(name)] ?? "";
    }
    return list;
  }

  // What can be read in a figure, by its lines or rows from the top: marks, and every point of a line.
  function series(chart) {
    const found = new Map();
    for (const path of chart.querySelectorAll("svg path")) {
      const first = path.__data__;
      if (!first?.tooltip) continue;
      const points = first.mark.marktype === "line" ? first.mark.items.filter((item) => item.defined !== false) : [first];
      const name = first.datum.label ?? first.datum.band ?? "";
      found.set(name, [...(found.get(name) ?? []), ...points.map((item) => ({ path, item, ...middle(path, item) }))]);
    }
    const all = [...found.values()].filter((stops) => stops.length);
    for (const stops of all) stops.sort((a, b) => a.x - b.x);
    return all.sort((a, b) => a.at(-1).y - b.at(-1).y);
  }

  // Where it is in the window. A line is one path: its points have places of their own.
  function middle(path, item) {
    if (item.mark.marktype === "line") {
      const { x, y } = new DOMPoint(item.x, item.y).matrixTransform(path.getScreenCTM());
      return { x, y };
    }
    const box = path.getBoundingClientRect();
    return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
  }

  const beside = (stops, x) => stops.reduce((best, stop, at) => (Math.abs(stop.x - x) < Math.abs(stops[best].x - x) ? at : best), 0);
  const nearest = (stops, x, y) => stops.reduce((best, stop) => (Math.hypot(stop.x - x, stop.y - y) < Math.hypot(best.x - x, best.y - y) ? stop : best));

  // Left and right lead along a line or row, up and down to the next, and say what the pointer would; Escape hides it.
  function walkable(figure, chart, view) {
    const spoken = [...chart.querySelectorAll("svg path")].map((path) => path.__data__).filter((item) => item?.tooltip);
    if (!spoken.length) return;
    const along = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
    const across = { ArrowDown: 1, ArrowUp: -1 };
    const hide = () => show(chart, view, null);
    let row = 0, place = -1;
    Object.assign(chart, { tabIndex: 0, role: "group", ariaLabel: "Values of the figure: left and right arrow keys lead along a line or row, up and down to the next" });
    chart.addEventListener("keydown", (event) => {
      if (event.key === "Escape") hide();
      if (!(event.key in along) && !(event.key in across)) return;
      event.preventDefault();
      const all = series(chart), within = (at, list) => Math.min(Math.max(at, 0), list.length - 1);
      const before = all[within(row, all)][within(place, all[within(row, all)])];
      row = within(row + (across[event.key] ?? 0), all);
      place = event.key in across ? beside(all[row], before.x) : within(place + along[event.key], all[row]);
      show(chart, view, all[row][place]);
      const said = [...document.querySelectorAll("#vg-tooltip-element tr")];
      figure.querySelector("[role=status]").textContent = said.map((each) => each.innerText.replace(/\s+/g, " ")).join("; ");
    });
    chart.addEventListener("blur", hide);
    if (!spoken.some((item) => item.mark.marktype === "line")) return;
    // Vega says of a line's first point wherever the pointer is on it.
    chart.addEventListener("pointermove", ({ clientX, clientY }) => {
      const stop = nearest(series(chart).flat(), clientX, clientY);
      show(chart, view, Math.hypot(stop.x - clientX, stop.y - clientY) < 20 ? stop : null);
    });
    chart.addEventListener("pointerleave", hide);
  }

  // The values of a stop in the tooltip, and where it is; its line comes to the front of the others.
  function show(chart, view, stop) {
    for (const path of chart.querySelectorAll(".read")) path.classList.remove("read");
    const ring = chart.querySelector(".stop") ?? chart.appendChild(Object.assign(document.createElement("div"), { className: "stop" }));
    ring.hidden = !stop;
    if (!stop) return view.tooltip()(null, new PointerEvent("pointerout"), null, null);
    const { left, top } = chart.getBoundingClientRect();
    Object.assign(ring.style, { left: `${stop.x - left}px`, top: `${stop.y - top}px` });
    if (stop.item.mark.marktype === "line") stop.path.classList.add("read");
    view.tooltip()(null, new PointerEvent("pointermove", { clientX: stop.x, clientY: stop.y }), stop.item, stop.item.tooltip);
  }

  // A column of a table that is too wide shows whole or not at all: part of a number would read as another number.
  function fit(region) {
    const table = region.querySelector("table");
    const { left, right } = region.getBoundingClientRect();
    const heads = [...(table?.tHead?.rows[0].cells ?? [])].map((cell) => ({ cell, box: cell.getBoundingClientRect() }));
    const wide = region.scrollWidth > region.clientWidth + 1;
    region.tabIndex = wide ? 0 : -1;
    if (!heads.length) return;
    const free = heads.findIndex(({ cell }) => getComputedStyle(cell).position !== "sticky");
    const stay = free < 0 ? heads.length : free; // columns that do not scroll
    const start = stay ? heads[stay - 1].box.right : left;
    const room = right - start;
    const outside = heads.map(({ cell, box }, place) => {
      const stuck = place < stay && start > left;
      return wide && !stuck && box.width <= room && (box.left < start - 1 || box.right > right + 1);
    });
    const count = outside.filter(Boolean).length;
    region.dataset.more = count ? `Scroll sideways for ${count} more column${count > 1 ? "s" : ""}` : "";
    for (const [place, hidden] of outside.entries()) {
      if (heads[place].cell.classList.contains("outside") === hidden) continue;
      for (const row of table.rows) row.cells[place]?.classList.toggle("outside", hidden && row.cells[place].colSpan === 1);
    }
  }

  // The first time when a figure has a width; again when its names fit no more, or fit again. Those in the window come
  // first, and the page answers between any two.
  const outside = ({ top, bottom }) => top > innerHeight || bottom < 0;
  const figures = new ResizeObserver((entries) => {
    const places = new Map(entries.map(({ target }) => [target, outside(target.getBoundingClientRect())]));
    for (const target of [...places.keys()].sort((a, b) => places.get(a) - places.get(b))) {
      const before = Boolean(target.querySelector(".key"));
      if (target.dataset.state && needsKey(target, specification(target)) === before) continue;
      delete target.dataset.state;
      drawing = drawing.then(() => draw(target)).then(() => new Promise((answered) => setTimeout(answered)));
    }
  });
  let drawing = Promise.resolve();
  for (const figure of document.querySelectorAll("figure[data-chart]")) figures.observe(figure);
  const sizes = new ResizeObserver((entries) => entries.forEach(({ target }) => fit(target)));
  for (const region of document.querySelectorAll(".table")) {
    sizes.observe(region);
    region.addEventListener("scroll", () => fit(region), { passive: true });
  }
})();
