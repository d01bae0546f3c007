/* SPDX-License-Identifier: Apache-2.0 */
/* libhal.a(uart.o): 32 bytes of .data and 256 of .bss that belong to a library. */
#include <stddef.h>
#include <stdint.h>

void uart_write(const char *text);

uint32_t uart_settings[8] = {115200};
volatile char uart_queue[256];

void uart_write(const char *text)
{
    for (size_t i = 0; text[i] != 0; i++)
        uart_queue[(i + uart_settings[1]) % sizeof(uart_queue)] = text[i];
}
