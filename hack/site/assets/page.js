// Unfolds menu and contents where there is room beside the text, and gives each block of code a button that copies it: of a transcript
// only what is typed.
"use strict";
for (const part of document.querySelectorAll("details[data-unfold]")) {
  const room = matchMedia(part.dataset.unfold), unfold = () => { part.open = room.matches; };
  unfold();
  room.addEventListener("change", unfold);
}
for (const block of document.querySelectorAll(".code")) {
  const button = document.createElement("button"), code = block.querySelector("code") || block;
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    const lines = code.textContent.split("\n"), typed = lines.filter(line => line.startsWith("$ "));
    const text = typed.length ? typed.map(line => line.slice(2)).join("\n") + "\n" : code.textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch { // files that no server serves have no clipboard: mark it instead
      getSelection().selectAllChildren(code);
      button.textContent = "Marked";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  block.append(button);
}
