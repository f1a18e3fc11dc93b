// Finds sections that have every word of the query, the beginnings of words included: those with the words in a heading first.
"use strict";
(() => {
  const input = document.getElementById("search"), found = document.getElementById("found");
  const wide = matchMedia("(min-width: 52em)"), menu = document.querySelector("nav details");
  const unfold = () => { menu.open = wide.matches; };
  unfold();
  wide.addEventListener("change", unfold);

  const count = (text, word) => text.split(word).length - 1;
  const score = (section, words) => {
    const page = section.p.toLowerCase(), heading = section.h.toLowerCase(), text = section.t.toLowerCase();
    let sum = 0;
    for (const word of words) {
      const here = 20 * count(heading, word) + 5 * count(page, word) + Math.min(5, count(text, word));
      if (here === 0) return 0;
      sum += here;
    }
    return sum;
  };
  const show = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    found.replaceChildren();
    found.hidden = words.length === 0;
    if (found.hidden) return;
    const hits = window.sections.map(section => ({section, score: score(section, words)})).filter(hit => hit.score > 0)
      .sort((a, b) => b.score - a.score);
    const say = document.createElement("p"), list = document.createElement("ul");
    say.textContent = hits.length === 0 ? "Nothing found." : `${hits.length} found`;
    for (const {section} of hits.slice(0, 12)) {
      const item = document.createElement("li"), link = document.createElement("a");
      link.href = window.up + section.a;
      link.textContent = section.h === section.p ? section.p : `${section.p}: ${section.h}`;
      item.append(link);
      list.append(item);
    }
    found.append(say, list);
  };
  input.addEventListener("input", show);
  const asked = new URLSearchParams(location.search).get("q");
  if (asked) { input.value = asked; show(); }
})();
