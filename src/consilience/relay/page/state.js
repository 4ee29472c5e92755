// What the relay has sent so far: all of the status, and every change since.

export class State {
  constructor() {
    this.federations = new Map();
    this.members = new Map();
    this.offset = 0;  // seconds that this machine's clock is behind the relay's
  }

  apply(kind, sent) {
    if (kind === "status") {
      this.federations.clear();
      this.members.clear();
    }
    this.offset = sent.time - Date.now() / 1000;
    for (const part of ["relay", "store", "refusals"]) { this[part] = sent[part] ?? this[part]; }
    for (const federation of sent.federations ?? []) { this.federations.set(federation.id, federation); }
    for (const member of sent.members ?? []) {
      this.members.set(member.id, { ...member, key: member.name.toLowerCase() });
    }
    for (const [id, seen] of Object.entries(sent.seen ?? {})) {
      const member = this.members.get(Number(id));
      if (member) { member.seen = Math.max(member.seen, seen); }
    }
  }

  get now() { return Date.now() / 1000 + this.offset; }

  // Federations by name; those that are not served come first.
  get sorted() {
    return [...this.federations.values()].sort((a, b) => a.served - b.served || a.name.localeCompare(b.name));
  }

  get served() { return this.sorted.filter((federation) => federation.served); }

  // Uploads of all federations in each of the last 60 minutes, the newest last.
  get minutes() {
    const total = new Array(60).fill(0);
    for (const { minutes } of this.served) {
      minutes.forEach((uploads, i) => { total[total.length - minutes.length + i] += uploads; });
    }
    return total;
  }
}
