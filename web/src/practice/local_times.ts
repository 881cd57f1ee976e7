// Times are written in UTC by the server; here they are shown in the reader's own time zone.

export function showLocalTimes(root: ParentNode): void {
  for (const element of root.querySelectorAll<HTMLTimeElement>("time[datetime]")) {
    const time = new Date(element.dateTime);
    if (Number.isNaN(time.getTime()) || element.dataset.local) continue;
    element.dataset.local = "shown";
    element.title = element.textContent ?? "";
    element.textContent = localTimeText(time, new Date());
  }
}

/** "today 14:03", or the date and the time. */
export function localTimeText(time: Date, now: Date, locale?: string): string {
  const clock = time.toLocaleTimeString(locale, { hour: "2-digit", minute: "2-digit" });
  const isToday = time.toDateString() === now.toDateString();
  return isToday ? `today ${clock}` : `${time.toLocaleDateString(locale, { day: "numeric", month: "short", year: "numeric" })} ${clock}`;
}
