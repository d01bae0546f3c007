# SPDX-License-Identifier: Apache-2.0
"""Code of small functions by hand, each with the stack that it takes; from GNU as 2.40.

Comments are the assembly.  `bytes` is the bound of ``f`` with all it calls (None: only that it is
not known), `unknown` a part of what must be said of it when the bound is not complete.
"""

from __future__ import annotations

from dataclasses import dataclass

from elf_writer import AARCH64, ARM, AX, FUNC, RISCV, ElfWriter

BASE = 0x8000


@dataclass(frozen=True)
class Case:
    """One piece of code with its functions by offset."""

    name: str
    cpu: str
    code: str
    functions: dict[str, int]
    bytes: int | None
    unknown: str

    def elf(self, little: bool = True, code: bytes | None = None) -> ElfWriter:
        """An ELF of it; `code` is put in place of its own."""
        machine, bits = _CPUS[self.cpu]
        elf = ElfWriter(machine=machine, bits=bits, little=little)
        code = bytes.fromhex(self.code) if code is None else code
        text = elf.section(".text", BASE, code, flags=AX, align=4)
        elf.load([text])
        if "zcmp" in self.name:
            elf.section(".riscv.attributes", 0, b"A\0rv32imac_zcmp1p0\0", flags=0)
        ends = [*sorted(self.functions.values())[1:], len(code)]
        for (name, at), end in zip(self.functions.items(), ends, strict=True):
            elf.symbol(name, BASE + at | (self.cpu == "thumb"), end - at, FUNC, section=text)
        return elf


_CPUS = {
    "thumb": (ARM, 32), "arm": (ARM, 32), "a64": (AARCH64, 64), "rv32": (RISCV, 32),
    "rv64": (RISCV, 64),
}  # fmt: skip

CASES = [
    # f: push {r4-r7,lr}; sub sp,#20; bl g; add sp,#20; pop {r4-r7,pc}; g: push {r3,lr}; pop
    # {r3,pc}
    Case(
        "push_sub",
        "thumb",
        "f0b585b000f002f805b0f0bd08b508bd",
        {"f": 0, "g": 12},
        48,
        "",
    ),
    # f: stmdb sp!,{r4-r11,lr}; vpush {d8-d10}; subw sp,sp,#4092; addw sp,sp,#4092; vpop
    # {d8-d10}; ldmia sp!,{r4-r11,pc}
    Case(
        "wide",
        "thumb",
        "2de9f04f2ded068badf6fc7d0df6fc7dbdec068bbde8f08f",
        {"f": 0},
        4152,
        "",
    ),
    # f: push {r4,lr}; movw ip,#0x2350; movt ip,#1; sub.w sp,sp,ip; add.w sp,sp,ip; pop
    # {r4,pc}
    Case(
        "movw_movt",
        "thumb",
        "10b542f2503cc0f2010cadeb0c0d0deb0c0d10bd",
        {"f": 0},
        74584,
        "",
    ),
    # f: push {r4,lr}; ldr r3,2f; add sp,r3; ldr r3,3f; add sp,r3; pop {r4,pc}; .align 2; 2:
    # .word -1200; 3: .word 1200
    Case(
        "literal",
        "thumb",
        "10b5024b9d44024b9d4410bd50fbffffb0040000",
        {"f": 0},
        1208,
        "",
    ),
    # f: push {r7,lr}; mov r7,sp; sub.w sp,sp,r0; bl g; mov sp,r7; pop {r7,pc}; g: push
    # {r4-r7,lr}; pop {r4-r7,pc}
    Case(
        "alloca",
        "thumb",
        "80b56f46adeb000d00f002f8bd4680bdf0b5f0bd",
        {"f": 0, "g": 16},
        28,
        "unknown amount",
    ),
    # f: cbz r0,1f; push {r4,lr}; bl g; pop {r4,pc}; 1: bx lr; g: sub sp,#16; add sp,#16; bx
    # lr
    Case(
        "shrink_wrapped",
        "thumb",
        "18b110b500f002f810bd704784b004b07047",
        {"f": 0, "g": 12},
        24,
        "",
    ),
    # f: push {r4,lr}; bl h; ldmia.w sp!,{r4,lr}; b.w g; g: sub sp,#100; add sp,#100; bx lr;
    # h: sub sp,#40; add sp,#40; bx lr
    Case(
        "tail_popped",
        "thumb",
        "10b500f007f8bde8104000f000b899b019b070478ab00ab07047",
        {"f": 0, "g": 14, "h": 20},
        100,
        "",
    ),
    # f: push {r4,lr}; cbz r0,1f; pop {r4,pc}; 1: b.w g; g: sub sp,#24; bl h; add sp,#24; pop
    # {r4,pc}; h: push {r4,lr}; pop {r4,pc}
    Case(
        "cold_part",
        "thumb",
        "10b500b110bd00f000b886b000f002f806b010bd10b510bd",
        {"f": 0, "g": 10, "h": 20},
        40,
        "",
    ),
    # f: push {r4,lr}; sub sp,#8; cmp r0,#0; ittt eq; moveq r0,#1; addeq sp,#8; popeq {r4,pc};
    # bl g; add sp,#8; pop {r4,pc}; g: push {r4,lr}; pop {r4,pc}
    Case(
        "it_block",
        "thumb",
        "10b582b0002802bf012002b010bd00f002f802b010bd10b510bd",
        {"f": 0, "g": 22},
        24,
        "",
    ),
    # f: push {r4,lr}; cmp r0,#2; bhi 4f; tbb [pc,r0]; 9: .byte
    # (1f-9b)/2,(2f-9b)/2,(3f-9b)/2,0; 1: bl g; b 4f; 2: bl h; b 4f; 3: movs r0,#1; 4: pop
    # {r4,pc}; g: sub sp,#40; add sp,#40; bx lr; h: sub sp,#80; add sp,#80; bx lr
    Case(
        "switch",
        "thumb",
        "10b502280ad8dfe800f00205080000f006f803e000f006f800e0012010bd8ab00ab0704794b014b07047",
        {"f": 0, "g": 30, "h": 36},
        88,
        "",
    ),
    # f: push {r4,lr}; 1: push {r0}; subs r1,#1; bne 1b; pop {r4,pc}
    Case(
        "push_in_loop",
        "thumb",
        "10b501b40139fcd110bd",
        {"f": 0},
        None,
        "in a loop",
    ),
    # f: push {r4,lr}; ldr r3,2f; blx r3; pop {r4,pc}; .align 2; 2: .word g+1; g: sub sp,#48;
    # add sp,#48; bx lr
    Case(
        "pointer",
        "thumb",
        "10b5014b984710bd0d8000008cb00cb0704700bf",
        {"f": 0, "g": 12},
        56,
        "",
    ),
    # f: push {r4,lr}; cmp r0,#0; ite eq; ldreq r3,2f; ldrne r3,3f; blx r3; pop {r4,pc};
    # .align 2; 2: .word g+1; 3: .word h+1; g: sub sp,#48; add sp,#48; bx lr; h: sub sp,#64;
    # add sp,#64; bx lr
    Case(
        "picked_pointer",
        "thumb",
        "10b500280cbf024b024b984710bd00bf198000001f8000008cb00cb0704790b010b07047",
        {"f": 0, "g": 24, "h": 30},
        72,
        "",
    ),
    # f: push {lr}; sub sp,#4; push {r0,r1}; bl g; add sp,#12; pop {pc}; g: push {r4,r5}; pop
    # {r4,r5}; bx lr
    Case(
        "arguments",
        "thumb",
        "00b581b003b400f002f803b000bd30b430bc7047",
        {"f": 0, "g": 14},
        24,
        "",
    ),
    # f: push {r4,lr}; bl g; pop {r4}; pop {r3}; bx r3; g: bx lr
    Case(
        "return_by_r3",
        "thumb",
        "10b500f003f810bc08bc18477047",
        {"f": 0, "g": 12},
        8,
        "",
    ),
    # f: push {r4,lr}; cbz r0,1f; subs r0,#1; bl f; 1: pop {r4,pc}
    Case(
        "recursive",
        "thumb",
        "10b510b10138fff7fbff10bd",
        {"f": 0},
        8,
        "it calls itself",
    ),
    # f: push {r4,lr}; ldr r3,[r0]; blx r3; pop {r4,pc}; g: sub sp,#56; add sp,#56; bx lr
    Case(
        "indirect",
        "thumb",
        "10b50368984710bd8eb00eb07047",
        {"f": 0, "g": 8},
        8,
        "indirect call",
    ),
    # f: push {r4,lr}; bl h; pop {r4,pc}; .align 2; h: ldr.w pc,[pc]; .word g+1; g: sub
    # sp,#72; add sp,#72; bx lr
    Case(
        "veneer",
        "thumb",
        "10b500f001f810bddff800f01180000092b012b0704700bf",
        {"f": 0, "h": 8, "g": 16},
        80,
        "",
    ),
    # f: push {r4,r7,lr}; add r7,sp,#4; sub sp,#20; mov r4,sp; bfc r4,#0,#5; mov sp,r4; sub.w
    # r4,r7,#4; mov sp,r4; pop {r4,r7,pc}
    Case(
        "realigned",
        "thumb",
        "90b501af85b06c466ff30404a546a7f10404a54690bd",
        {"f": 0},
        56,
        "",
    ),
    # f: push {r4-r7,lr}; sub sp,sp,#0x1000; cmp r0,#0; addne sp,sp,#0x1000; popne {r4-r7,pc};
    # bl g; add sp,sp,#0x1000; pop {r4-r7,pc}; g: str lr,[sp,#-8]!; mov lr,pc; bx r1; ldr
    # pc,[sp],#8
    Case(
        "a32",
        "arm",
        "f0402de901da4de2000050e301da8d12f080bd18010000eb01da8de2f080bde808e02de50fe0a0e1"
        "11ff2fe108f09de4",
        {"f": 0, "g": 32},
        4124,
        "indirect call",
    ),
    # f: mov ip,sp; push {fp,ip,lr,pc}; sub fp,ip,#4; sub sp,sp,r0; sub sp,fp,#12; ldm
    # sp,{fp,sp,pc}
    Case(
        "a32_frame",
        "arm",
        "0dc0a0e100d82de904b04ce200d04de00cd04be200a89de8",
        {"f": 0},
        16,
        "unknown amount",
    ),
    # f: stp x29,x30,[sp,#-32]!; str x19,[sp,#16]; mov x29,sp; bl g; ldr x19,[sp,#16]; ldp
    # x29,x30,[sp],#32; ret; g: sub sp,sp,#1,lsl #12; sub sp,sp,#16; str x0,[sp,#-16]!; ldr
    # x0,[sp],#16; add sp,sp,#16; add sp,sp,#1,lsl #12; ret
    Case(
        "a64",
        "a64",
        "fd7bbea9f30b00f9fd03009104000094f30b40f9fd7bc2a8c0035fd6ff0740d1ff4300d1e00f1ff8"
        "e00741f8ff430091ff074091c0035fd6",
        {"f": 0, "g": 28},
        4160,
        "",
    ),
    # f: mov x16,#0x2340; movk x16,#1,lsl #16; sub sp,sp,x16; add sp,sp,x16; ret
    Case(
        "a64_large",
        "a64",
        "106884d23000a0f2ff6330cbff63308bc0035fd6",
        {"f": 0},
        74560,
        "",
    ),
    # f: stp x29,x30,[sp,#-16]!; mov x29,sp; sub sp,sp,x0; bl g; mov sp,x29; ldp
    # x29,x30,[sp],#16; ret; g: ret
    Case(
        "a64_alloca",
        "a64",
        "fd7bbfa9fd030091ff6320cb04000094bf030091fd7bc1a8c0035fd6c0035fd6",
        {"f": 0, "g": 28},
        16,
        "unknown amount",
    ),
    # f: stp x29,x30,[sp,#-16]!; mov x29,sp; sub x9,sp,#112; and sp,x9,#-64; mov sp,x29; ldp
    # x29,x30,[sp],#16; ret
    Case(
        "a64_realigned",
        "a64",
        "fd7bbfa9fd030091e9c301d13fe57a92bf030091fd7bc1a8c0035fd6",
        {"f": 0},
        176,
        "",
    ),
    # f: stp x29,x30,[sp,#-16]!; adrp x8,g; add x8,x8,:lo12:g; adrp x9,h; add x9,x9,:lo12:h;
    # cmp x0,#0; csel x8,x8,x9,eq; blr x8; ldp x29,x30,[sp],#16; ret; g: sub sp,sp,#48; add
    # sp,sp,#48; ret; h: sub sp,sp,#64; add sp,sp,#64; ret
    Case(
        "a64_pointer",
        "a64",
        "fd7bbfa90800009008a100910900009029d100911f0000f10801899a00013fd6fd7bc1a8c0035fd6"
        "ffc300d1ffc30091c0035fd6ff0301d1ff030191c0035fd6",
        {"f": 0, "g": 40, "h": 52},
        80,
        "",
    ),
    # f: str x30,[sp,#-16]!; cmp w0,#1; b.hi 3f; adr x1,9f; ldrb w2,[x1,w0,uxtw]; adr x1,1f;
    # add x1,x1,w2,sxtb #2; br x1; 1: bl g; b 3f; 2: bl h; 3: ldr x30,[sp],#16; ret; 9: .byte
    # 0,2; .align 2; g: ret; h: sub sp,sp,#32; add sp,sp,#32; ret
    Case(
        "a64_switch",
        "a64",
        "fe0f1ff81f040071280100544101001022486038610000102188228b20001fd60600009402000014"
        "05000094fe0741f8c0035fd600020000c0035fd6ff8300d1ff830091c0035fd6",
        {"f": 0, "g": 56, "h": 60},
        48,
        "",
    ),
    # f: ldr x1,[x0]; br x1; g: sub sp,sp,#32; add sp,sp,#32; ret
    Case(
        "a64_tail_pointer",
        "a64",
        "010040f920001fd6ff8300d1ff830091c0035fd6",
        {"f": 0, "g": 8},
        0,
        "indirect jump",
    ),
    # f: addi sp,sp,-32; sd ra,24(sp); call g; ld ra,24(sp); addi sp,sp,32; ret; g: addi
    # sp,sp,-2032; lui t0,0xfffff; addi t0,t0,16; add sp,sp,t0; sub sp,sp,t0; addi sp,sp,2032;
    # ret
    Case(
        "rv64",
        "rv64",
        "011106ec97000000e780e000e2600561828013010181fd72c1021691330151401301017f8280",
        {"f": 0, "g": 18},
        6144,
        "",
    ),
    # f: addi sp,sp,-16; sd s0,0(sp); addi s0,sp,16; sub sp,sp,a0; call g; addi sp,s0,-16; ld
    # s0,0(sp); addi sp,sp,16; ret; g: ret
    Case(
        "rv64_alloca",
        "rv64",
        "411122e000083301a14097000000e7802001130104ff0264410182808280",
        {"f": 0, "g": 28},
        16,
        "unknown amount",
    ),
    # f: jal t0,g; addi sp,sp,-16; call h; addi sp,sp,16; ld ra,24(sp); addi sp,sp,32; ret; g:
    # addi sp,sp,-32; sd ra,24(sp); jr t0; h: addi sp,sp,-48; addi sp,sp,48; ret
    Case(
        "rv64_save",
        "rv64",
        "ef026001411197000000e78060014101e26005618280011106ec8282797145618280",
        {"f": 0, "g": 22, "h": 28},
        96,
        "",
    ),
    # f: addi sp,sp,-32; sd ra,24(sp); call h; ld ra,24(sp); addi sp,sp,32; tail g; g: addi
    # sp,sp,-96; addi sp,sp,96; ret; h: addi sp,sp,-48; addi sp,sp,48; ret
    Case(
        "rv64_tail",
        "rv64",
        "011106ec97000000e780a001e260056117030000670083001d7125618280797145618280",
        {"f": 0, "g": 24, "h": 30},
        96,
        "",
    ),
    # f: addi sp,sp,-64; sw ra,60(sp); jal g; lw ra,60(sp); addi sp,sp,64; ret; g: li
    # t0,-4096; add sp,sp,t0; li t0,4096; add sp,sp,t0; ret
    Case(
        "rv32",
        "rv32",
        "397106deef00a000f25021618280fd721691856216918280",
        {"f": 0, "g": 14},
        4160,
        "",
    ),
    # f: addi sp,sp,-16; sw ra,12(sp); lw a5,0(a0); jalr a5; lw ra,12(sp); addi sp,sp,16; ret;
    # g: addi sp,sp,-32; addi sp,sp,32; ret
    Case(
        "rv32_indirect",
        "rv32",
        "411106c61c418297b24041018280011105618280",
        {"f": 0, "g": 14},
        16,
        "indirect call",
    ),
    # Armv8.1-M: push {r4, lr}; dlstp.8 lr, r2; 1: vstrb.8 q0, [r4], #16; letp lr, 1b; pop {r4, pc}
    Case(
        "helium_loop",
        "thumb",
        "10b502f001e0a4ec101e1ff005c010bd",
        {"f": 0},
        8,
        "",
    ),
    # Zcmp: cm.push {ra, s0-s1}, -32; cm.popret {ra, s0-s1}, 32
    Case(
        "rv32_zcmp",
        "rv32",
        "66b866be",
        {"f": 0},
        32,
        "",
    ),
]
