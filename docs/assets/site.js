// The theme adds these elements while the page loads: tables that scroll cannot be reached by keyboard, and the copy button
// of each code block is in a nav, which readers would announce as a landmark.
const repair = () => {
  document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])").forEach((one) => { one.tabIndex = 0; });
  document.querySelectorAll(".md-code__nav:not([role])").forEach((one) => { one.setAttribute("role", "presentation"); });
};
new MutationObserver(repair).observe(document.body, { childList: true, subtree: true });
repair();
