// Requests about something that is being typed: after a pause, one at a time, and only the newest is answered.

const PAUSE_MS = 600;

export class LatestRequest<Query, Answer> {
  private newest = 0;
  private lastDrop = Number.NEGATIVE_INFINITY;
  private underWay: Promise<unknown> = Promise.resolve();

  constructor(
    private readonly send: (query: Query) => Promise<Answer>,
    private readonly pauseMs = PAUSE_MS,
  ) {}

  /** The answer, or null if another request has come after this one. Only what is still the newest is sent. */
  async request(query: Query): Promise<Answer | null> {
    this.newest += 1;
    const own = this.newest;
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, this.lastDrop + this.pauseMs - performance.now())));
    while (own === this.newest) {
      const before = this.underWay;
      await before;
      // Another one may have been sent meanwhile.
      if (before === this.underWay) break;
    }
    if (own !== this.newest) return null;
    const answer = this.send(query);
    this.underWay = answer.catch(() => undefined);
    try {
      const value = await answer;
      return own === this.newest ? value : null;
    } catch (error) {
      if (own !== this.newest) return null;
      throw error;
    }
  }

  /** What the newest request is about has changed: the next one comes after a pause. */
  drop(): void {
    this.newest += 1;
    this.lastDrop = performance.now();
  }
}
