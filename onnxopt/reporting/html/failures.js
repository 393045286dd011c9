// What goes wrong in one part of the page is said, and leaves the others as they are.

const failures = new Set();

/** Say it above the graphs, once, and in the console. */
const failed = (what, error) => {
  const text = `${what}: ${error?.message ?? error}`;
  if (failures.has(text)) return;
  failures.add(text);
  console.error(text, error);
  const list = document.querySelector(".failures"), line = document.createElement("li");
  line.textContent = text;
  list.append(line);
  list.hidden = false;
};

/** What `run` returns; where it fails, what `otherwise` does. */
const attempt = (what, run, otherwise = () => undefined) => {
  try {
    return run();
  } catch (error) {
    failed(what, error);
    return otherwise();
  }
};
