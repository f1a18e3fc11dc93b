// Finds the sections that have most of the words of the query, the beginnings of words included, so that a whole error message may be
// pasted. Rare words count more than common ones, headings more than text, and the words in their order more than the same words elsewhere.
"use strict";
(() => {
  const input = document.getElementById("search"), found = document.getElementById("found");
  const most = 12, enough = 0.6; // of the weight of all words
  const plain = text => text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, " ").trim();
  let prepared;
  const sections = () => prepared ||= window.sections.map(s => ({...s, page: ` ${plain(s.p)}`, heading: ` ${plain(s.h)}`, text: ` ${plain(s.t)}`}));
  const search = query => {
    const whole = ` ${plain(query)}`, words = [...new Set(whole.split(" ").filter(Boolean))].map(word => ` ${word}`);
    const has = (section, word) => section.text.includes(word) || section.heading.includes(word) || section.page.includes(word);
    const weights = words.map(word => Math.log(1 + sections().length / (1 + sections().filter(s => has(s, word)).length)));
    const sum = weights.reduce((a, b) => a + b, 0), hits = [];
    for (const section of sections()) {
      const share = test => words.reduce((got, word, i) => got + (test(word) ? weights[i] : 0), 0) / sum;
      const got = share(word => has(section, word));
      if (got < enough) continue;
      let score = got + share(word => section.heading.includes(word)) + share(word => section.page.includes(word)) / 2;
      if (words.length > 1 && (section.text.includes(whole) || section.heading.includes(whole))) score += 0.5;
      hits.push({section, score});
    }
    return hits.sort((a, b) => b.score - a.score);
  };
  // excerpt is the text around the query, or around the longest of its words that is there.
  const excerpt = (section, query) => {
    const lower = section.t.toLowerCase(), wanted = [query.trim().toLowerCase(), ...plain(query).split(" ").sort((a, b) => b.length - a.length)];
    const at = Math.max(0, ...wanted.map(text => lower.indexOf(text)).filter(i => i >= 0).slice(0, 1));
    const from = at < 50 ? 0 : section.t.indexOf(" ", at - 50) + 1, to = section.t.indexOf(" ", at + 100);
    return (from ? "… " : "") + section.t.slice(from, to < 0 ? undefined : to) + (to < 0 ? "" : " …");
  };
  const show = () => {
    found.replaceChildren();
    found.hidden = plain(input.value) === "";
    if (found.hidden) return;
    const hits = search(input.value), say = document.createElement("p"), list = document.createElement("ul");
    say.textContent = hits.length === 0 ? "Nothing found. Fewer words find more." : `${hits.length} found`;
    for (const {section} of hits.slice(0, most)) {
      const item = document.createElement("li"), link = document.createElement("a"), text = document.createElement("p");
      link.href = window.up + section.a;
      link.textContent = section.h === section.p ? section.p : `${section.p}: ${section.h}`;
      text.textContent = excerpt(section, input.value);
      item.append(link, text);
      list.append(item);
    }
    found.append(say, list);
  };
  input.addEventListener("input", show);
  const asked = new URLSearchParams(location.search).get("q");
  if (asked) { input.value = asked; show(); }
})();
