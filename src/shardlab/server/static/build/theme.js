var e=localStorage.getItem("theme");(e==="dark"||e==="light")&&(document.documentElement.dataset.theme=e);
