// What tests ask of a page. Each function returns plain data.
const probes = (() => {
  const said = (node) => node.textContent.trim().replace(/\s+/g, " ").slice(0, 60);
  const visible = { opacityProperty: true, visibilityProperty: true, contentVisibilityAuto: true };

  function structure() {
    const levels = [...document.querySelectorAll("h1, h2, h3, h4")].map((h) => Number(h.tagName[1]));
    const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
    return {
      titles: levels.filter((level) => level === 1).length,
      jumps: levels.filter((level, i) => i && level > levels[i - 1] + 1).length,
      unnamed: [...document.querySelectorAll("figure:not(:has(figcaption)), table:not(:has(caption)), table:not(:has(th[scope]))")].map(said),
      lost: [...document.querySelectorAll("[aria-labelledby]")].filter((e) => !document.getElementById(e.getAttribute("aria-labelledby"))).map(said),
      twice: ids.filter((id, i) => ids.indexOf(id) !== i),
      broken: [...document.querySelectorAll('a[href^="#"]')].filter((a) => a.hash.length > 1 && !document.getElementById(decodeURIComponent(a.hash.slice(1)))).map((a) => a.hash),
      undrawn: [...document.querySelectorAll("figure[data-chart]")].filter((f) => f.dataset.state !== "drawn").map(said),
      empty: [...document.querySelectorAll(".chart svg")].filter((s) => s.querySelectorAll("path").length < 3 || !s.ariaLabel).length,
    };
  }

  const links = () => [...document.querySelectorAll("a[href]")].map((a) => ({ url: a.href.replace(/#.*/, ""), download: a.hasAttribute("download") }));

  // Words that the edge of the window, or of the box that they scroll in, cuts; names that a figure cut itself.
  function cut() {
    const found = [];
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
      const parent = walk.currentNode.parentElement;
      if (!said(walk.currentNode) || parent.closest("script, style, noscript, nav, .visually-hidden, .skip") || !parent.checkVisibility(visible)) continue;
      if (parent instanceof SVGElement && said(walk.currentNode).endsWith("\u2026")) found.push(said(walk.currentNode));
      const range = document.createRange();
      range.selectNodeContents(walk.currentNode);
      const boxes = [{ left: 0, right: innerWidth }];
      for (let e = parent; e !== document.body; e = e.parentElement)
        if (!(e instanceof SVGElement) && getComputedStyle(e).overflowX !== "visible") boxes.push(e.getBoundingClientRect());
      const across = (rect, { left, right }) => (rect.left < left - 1 && rect.right > left + 1) || (rect.right > right + 1 && rect.left < right - 1);
      for (const rect of range.getClientRects())
        if (rect.width && boxes.some((box) => across(rect, box))) { found.push(said(walk.currentNode)); break; }
    }
    return found;
  }

  const frame = () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));

  // The same with every table scrolled to its start, its middle and its end.
  async function cutAnywhere() {
    const found = [], regions = [...document.querySelectorAll(".table")];
    for (const part of [0, 0.5, 1]) {
      for (const region of regions) region.scrollLeft = part * (region.scrollWidth - region.clientWidth);
      await frame();
      found.push(...cut().map((text) => `${text} (scrolled to ${part})`));
    }
    return found;
  }

  // Wide tables that do not say so, or that the keyboard does not reach.
  const unsaid = () => [...document.querySelectorAll(".table")]
    .filter((r) => r.checkVisibility(visible) && r.scrollWidth > r.clientWidth + 1 && !(r.tabIndex === 0 && r.ariaLabel && r.dataset.more)).map(said);

  async function axe(rules) {
    const options = { preload: false, resultTypes: ["violations"], ...(rules && { runOnly: { type: "rule", values: rules } }) };
    const { violations } = await window.axe.run(document, options);
    return violations.flatMap(({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html.slice(0, 160)}`));
  }

  return { structure, links, cut, cutAnywhere, unsaid, axe, frame };
})();
