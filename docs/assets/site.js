// The theme adds these elements while the page loads: tables and code that scroll cannot be reached by keyboard, and the copy
// button of each code block is in a nav, which readers would announce as a landmark. An empty corner of a table is no heading.
const repair = () => {
  document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex]), .md-typeset pre > code:not([tabindex])").forEach((one) => { one.tabIndex = 0; });
  document.querySelectorAll(".md-code__nav:not([role])").forEach((one) => { one.setAttribute("role", "presentation"); });
  document.querySelectorAll("th:empty").forEach((one) => { one.replaceWith(document.createElement("td")); });
};
new MutationObserver(repair).observe(document.body, { childList: true, subtree: true });
repair();
