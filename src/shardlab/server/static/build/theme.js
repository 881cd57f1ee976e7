var e=localStorage.getItem("theme");document.documentElement.classList.add("runs-scripts");(e==="dark"||e==="light")&&(document.documentElement.dataset.theme=e);
